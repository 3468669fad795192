"""Requests, references and lanes for the tests of Z-Image."""

from __future__ import annotations

from typing import Any

from epe.messages import Request

WIDTHS = (1, 2, 3, 4)
# Short and long differ in their number of 32-token blocks, so that a batch of both needs a mask.
SHORT = "a cat"
LONG = "a cat on a red chair at the table in the city with rain and light, and a green dog in the rain"
SIZES = ((64, 64), (256, 256), (272, 304), (512, 512))
PROMPTS = ((SHORT, "a dog"), (LONG, ""), (SHORT, LONG))


def make_request(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "id": "r",
        "prompt": SHORT,
        "negative_prompt": LONG,
        "height": 272,
        "width": 304,
        "num_steps": 3,
        "guidance_scale": 5.0,
        "seed": 11,
    }
    return Request(**(fields | changes))
