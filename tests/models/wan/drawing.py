"""Requests and references for the tests of Wan."""

from __future__ import annotations

from typing import Any

from epe.messages import OutputFormat, Request

SHORT = "a cat"
LONG = "a cat on a red chair at the table in the city with rain and light, and a green dog in the rain"
# (height, width, frames) that make 32, 105, 60, 64 and 131 rows of video.
SIZES = ((64, 64, 5), (80, 112, 9), (64, 80, 9), (128, 128, 1), (64, 96, 17))


def make_request(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "id": "r",
        "prompt": SHORT,
        "negative_prompt": LONG,
        "height": 80,
        "width": 112,
        "num_frames": 9,
        "num_steps": 4,
        "guidance_scale": 5.0,
        "seed": 11,
        "output_format": OutputFormat.MP4,
    }
    return Request(**(fields | changes))


def of_size(size: tuple[int, int, int], **changes: Any) -> Request:
    return make_request(height=size[0], width=size[1], num_frames=size[2], **changes)
