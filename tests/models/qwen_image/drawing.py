"""Requests and references for the tests of Qwen-Image."""

from __future__ import annotations

from typing import Any

from epe.messages import Request

SHORT = "a cat"
LONG = "a cat on a red chair at the table in the city with rain and light, and a green dog in the rain"
# So many tokens that text is shared by the ranks of a lane, in parts that are not even.
LONGEST = "a green dog in the city " * 25
# (height, width) that make 16, 63 and 323 rows of picture; LARGE makes 1024.
SIZES = ((64, 64), (112, 144), (272, 304))
LARGE = (512, 512)
PROMPTS = ((SHORT, " "), (LONG, SHORT), (LONGEST, SHORT), (SHORT, LONGEST))


def make_request(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "id": "r",
        "prompt": SHORT,
        "negative_prompt": LONG,
        "height": 112,
        "width": 144,
        "num_steps": 3,
        "guidance_scale": 4.0,
        "seed": 11,
    }
    return Request(**(fields | changes))
