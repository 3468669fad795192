"""An actor that keeps what it receives and does what it is sent, for the tests of the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from epe.actors.core import Actor, ActorSystem, Ref, RestartLimit


def now() -> float:
    return asyncio.get_running_loop().time()


class Recorder(Actor):
    """Keeps what it receives; a callable is called with the actor, and what it returns is awaited if need be."""

    inbox = 4

    def __init__(self, seen: list[Any], ended: list[str] | None = None) -> None:
        self.seen = seen
        self.ended = ended if ended is not None else []

    async def receive(self, message: Any) -> Any:
        self.seen.append(message if not callable(message) else "call")
        if not callable(message):
            return message
        result = message(self)
        return await result if asyncio.iscoroutine(result) else result

    async def stopped(self, reason: str) -> None:
        self.ended.append(reason)


def boom(_: Actor) -> None:
    raise ValueError("boom")


def sleep(delay_s: float) -> Callable[[Actor], Coroutine[Any, Any, None]]:
    return lambda _: asyncio.sleep(delay_s)


def recorder(*, restart: RestartLimit | None = None) -> tuple[ActorSystem, Ref, list[Any]]:
    system, seen = ActorSystem("a"), []
    return system, system.spawn("recorder", lambda: Recorder(seen), restart=restart), seen
