"""What the ranks of a spawned world do to draw through the whole runtime: planner, leases, links and lanes."""

from __future__ import annotations

import asyncio

import numpy as np

from epe.config.load import build_stage
from epe.messages import Request
from epe.runtime.embedded import EmbeddedDiffusionRuntime
from epe.runtime.rank import Seat
from tests.world import RankContext


def draw_together(
    context: RankContext, settings: dict[str, object], requests: list[Request]
) -> list[np.ndarray] | None:
    """The pixels of requests that are handed in at once, on rank 0. A rank of the world is one of the stage."""
    seat = Seat(
        rank=context.rank,
        world_size=context.world_size,
        device_index=context.rank,
        store=context.store,
    )
    return asyncio.run(_draw(EmbeddedDiffusionRuntime(build_stage(settings), seat=seat), requests))


async def _draw(runtime: EmbeddedDiffusionRuntime, requests: list[Request]) -> list[np.ndarray] | None:
    async with runtime:
        if not runtime.is_leader:
            return None
        handles = [await runtime.submit(request) for request in requests]
        return [np.asarray((await handle.result()).pixels) for handle in handles]
