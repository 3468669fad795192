"""What the tests of single families ask for: requests with the defaults of a family, and prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epe.messages import Request

SHORT = "a cat"
# In other blocks of 32 tokens than the short one, so that a batch of both needs a mask.
LONG = "a cat on a red chair at the table in the city with rain and light, and a green dog in the rain"


def maker(**defaults: Any) -> Callable[..., Request]:
    """Makes requests of these fields, but for those that are named."""

    def make_request(**changes: Any) -> Request:
        return Request(
            **({"id": "r", "prompt": SHORT, "negative_prompt": LONG, "seed": 11} | defaults | changes)
        )

    return make_request
