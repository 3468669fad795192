"""Requests for the tests of Qwen-Image."""

from __future__ import annotations

from tests.models.wishes import LONG, SHORT, maker

__all__ = ["LARGE", "LONG", "LONGEST", "PROMPTS", "SHORT", "SIZES", "make_request"]

# So many tokens that text is shared by the ranks of a lane, in parts that are not even.
LONGEST = "a green dog in the city " * 25
# (height, width) that make 16, 63 and 323 rows of picture; LARGE makes 1024.
SIZES = ((64, 64), (112, 144), (272, 304))
LARGE = (512, 512)
PROMPTS = ((SHORT, " "), (LONG, SHORT), (LONGEST, SHORT), (SHORT, LONGEST))

make_request = maker(height=112, width=144, num_steps=3, guidance_scale=4.0)
