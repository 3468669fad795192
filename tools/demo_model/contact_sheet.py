"""Draws the contact sheet of the documentation with the finished model.

python tools/demo_model/contact_sheet.py epe/models/demo docs/assets/demo-contact-sheet.png
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_model.evaluate import drawn, load_pipeline

PROMPTS = (
    "a red cube on a white table",
    "a large blue ball on the left on a brown table",
    "a small yellow cone on the right on a green table",
    "a purple ring in the middle on a white table in front of a light blue wall",
    "a green cylinder on the left and a pink star on the right on a black table",
    "a black cube on the left and a white ball on the right on a brown table",
    "two large orange stars on a grey table",
    "a small red ball to the right of a large blue box on a white table",
    "a large brown donut on a green table with a beige wall",
    "a white cone next to a purple cylinder on a black table",
    "a shiny yellow sphere on a brown table",
    "",
)
COLUMNS, SHOWN_SIDE = 4, 224


def main() -> None:
    """Writes the sheet; the n-th picture has seed n."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("sheet", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=3.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    pictures = drawn(
        load_pipeline(args.folder, args.device),
        PROMPTS,
        side=256,
        steps=args.steps,
        guidance=args.guidance,
        batch=4,
    )
    args.sheet.parent.mkdir(parents=True, exist_ok=True)
    sheet = _sheet([picture.permute(1, 2, 0).mul(255).round().byte().numpy() for picture in pictures])
    sheet.save(args.sheet, optimize=True)


def _sheet(pictures: list) -> Image.Image:
    rows = -(-len(pictures) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * SHOWN_SIDE, rows * SHOWN_SIDE), "white")
    for index, pixels in enumerate(pictures):
        shown = Image.fromarray(pixels).resize((SHOWN_SIDE, SHOWN_SIDE), Image.Resampling.LANCZOS)
        sheet.paste(shown, (index % COLUMNS * SHOWN_SIDE, index // COLUMNS * SHOWN_SIDE))
    return sheet


if __name__ == "__main__":
    main()
