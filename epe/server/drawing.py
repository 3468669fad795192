"""From requests to pictures: all together, or none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from epe.errors import TaskFailed
from epe.jobs.engine import Handle
from epe.messages import Accepted, Account, Request, Stage
from epe.server.engine import Engine


@dataclass(frozen=True, slots=True)
class Picture:
    """A finished request with its file."""

    request: Request
    accepted: Accepted
    account: Account
    file: bytes
    media_type: str


async def draw(engine: Engine, requests: Sequence[Request]) -> tuple[Picture, ...]:
    """Draw the requests side by side; raises what `Engine.submit` or `Handle.result` raise.

    When one fails, or the caller is cancelled because its client has left, the others are cancelled.
    """
    try:
        async with asyncio.TaskGroup() as group:
            drawn = [group.create_task(_draw_one(engine, request)) for request in requests]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return tuple(each.result() for each in drawn)


async def finished(request: Request, handle: Handle) -> Picture:
    """The picture of an accepted request, once it is there; raises what `Handle.result` raises."""
    result = await handle.result()
    if result.data is None:
        raise TaskFailed(f"request {request.id} ended without a file", stage=Stage.FINISH)
    return Picture(request, handle.accepted, result.account, result.data, result.media_type)


async def _draw_one(engine: Engine, request: Request) -> Picture:
    handle = await engine.submit(request)
    try:
        return await finished(request, handle)
    except asyncio.CancelledError:
        handle.cancel()
        raise
