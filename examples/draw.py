"""One picture or video with any family, on one device, through the async API.

    epe models make-tiny flux1 outputs/tiny-flux1
    python examples/draw.py flux1 outputs/tiny-flux1

Name the folder of real weights, and a larger size, for a picture worth looking at. A video's file needs epe[video].
`examples/epe_embedded.py` shows a host with several processes.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from epe import EmbeddedDiffusionRuntime
from epe.messages import OutputFormat

# What `generate` takes of each family beside the prompt; what is left out has the family's default.
WISHES: dict[str, dict[str, Any]] = {
    # Away from the negative prompt; 0 is no guidance, which distilled checkpoints want.
    "zimage": {"guidance_scale": 5.0, "negative_prompt": "blurred"},
    # An input of the model: there is no second branch and no negative prompt.
    "flux1": {"guidance_scale": 3.5},
    # Away from the empty prompt, with base checkpoints; distilled ones take none.
    "flux2-klein": {"guidance_scale": 4.0},
    # The true CFG scale; up to 1 there is one branch.
    "qwen-image": {"guidance_scale": 4.0, "negative_prompt": "blurred"},
    # Frames are 4n+1.
    "wan": {"guidance_scale": 5.0, "negative_prompt": "blurred", "num_frames": 9, "fps": 16},
}


async def draw(family: str, model_path: str, output: Path, *, side: int, num_steps: int) -> None:
    """Draw into `output` with `.png` or, where the family draws videos, `.mp4` after it."""
    stage = {
        "name": "draw",
        "factory": family,
        "gpu": [0],
        "factory_args": {"model_path": model_path},
    }
    is_video = "num_frames" in WISHES[family]
    async with EmbeddedDiffusionRuntime.from_stage(stage) as runtime:
        result = await runtime.generate(
            "a red cube on a white table",
            height=side,
            width=side,
            num_steps=num_steps,
            seed=7,
            output_format=OutputFormat.MP4 if is_video else OutputFormat.PNG,
            **WISHES[family],
        )
    file = output.with_suffix(".mp4" if is_video else ".png")
    file.write_bytes(result.data)
    print(f"{file}: {result.account.total_s:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw one picture or video.")
    parser.add_argument("family", choices=list(WISHES))
    parser.add_argument("model_path", help="folder of a checkpoint in diffusers' format")
    parser.add_argument("--output", type=Path, default=Path("drawn"), help="file without its ending")
    parser.add_argument("--side", type=int, default=256, help="pixels")
    parser.add_argument("--steps", type=int, default=8)
    given = parser.parse_args()
    asyncio.run(draw(given.family, given.model_path, given.output, side=given.side, num_steps=given.steps))


if __name__ == "__main__":
    main()
