"""Requests for the tests of Z-Image."""

from __future__ import annotations

from tests.models.wishes import LONG, SHORT, maker

__all__ = ["LONG", "PROMPTS", "SHORT", "SIZES", "make_request"]

SIZES = ((64, 64), (256, 256), (272, 304), (512, 512))
PROMPTS = ((SHORT, "a dog"), (LONG, ""), (SHORT, LONG))

make_request = maker(height=272, width=304, num_steps=3, guidance_scale=5.0)
