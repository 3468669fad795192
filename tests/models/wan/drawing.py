"""Requests for the tests of Wan."""

from __future__ import annotations

from typing import Any

from epe.messages import OutputFormat, Request
from tests.models.wishes import LONG, SHORT, maker

__all__ = ["LONG", "SHORT", "SIZES", "make_request", "of_size"]

# (height, width, frames) that make 32, 105, 60, 64 and 131 rows of video.
SIZES = ((64, 64, 5), (80, 112, 9), (64, 80, 9), (128, 128, 1), (64, 96, 17))

make_request = maker(
    height=80, width=112, num_frames=9, num_steps=4, guidance_scale=5.0, output_format=OutputFormat.MP4
)


def of_size(size: tuple[int, int, int], **changes: Any) -> Request:
    return make_request(height=size[0], width=size[1], num_frames=size[2], **changes)
