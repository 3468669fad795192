"""Virtual time for tests: an error that the loop would only log fails the test, and a test that never ends ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

from epe.simulator import virtual_time

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], *, limit_s: float = 1000) -> T:
    """Run `main` in virtual time; what went wrong in callbacks and in tasks without a waiter is raised."""
    unheard: list[dict[str, Any]] = []

    async def strict() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        return await main

    result = virtual_time.run(strict(), limit_s=limit_s)
    gc.collect(1)  # an exception that nobody has retrieved is reported when its future goes
    assert not unheard, unheard
    return result
