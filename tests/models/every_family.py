"""Requests and adapters for the tests that hold for every family alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from epe.families import FAMILIES
from epe.messages import OutputFormat, Request
from epe.models.contract import Adapter
from tests.models.on_ranks import Loading

# The adapters of so many ranks.
Ranks = Callable[[int], list[Adapter]]
# Above what makes a second branch, where a family has one.
GUIDANCE = {"zimage": 5.0, "flux1": 3.5, "flux2-klein": 4.0, "qwen-image": 4.0, "wan": 5.0}


def make_request(checkpoint: Path, **changes: Any) -> Request:
    """A guided request; its rows are an odd number, and those of its text are shared where a family shares text."""
    family = FAMILIES[checkpoint.name]
    height, width, num_frames = (80, 112, 9) if family.makes == "video" else (272, 304, 1)
    fields: dict[str, Any] = {
        "id": "r",
        "prompt": "a green dog in the city " * 8,
        "negative_prompt": "a chair" if family.negative_prompt else "",
        "height": height,
        "width": width,
        "num_frames": num_frames,
        "num_steps": 3,
        "guidance_scale": GUIDANCE[family.name],
        "seed": 5,
        "max_sequence_length": 150,
        "output_format": OutputFormat.RAW,
    }
    return Request(**(fields | changes))


def adapters_of(checkpoint: Path, count: int, **loading: Any) -> list[Adapter]:
    """One a rank; guidance branches as the pipeline has them, if `loading` does not say otherwise. The folder's name is
    that of the family."""
    how = Loading(**({"cfg_parallel_degree": 1} | loading))
    return [how.adapter(checkpoint) for _ in range(count)]
