"""A policy that moves every request to another lane at every step, and what the ranks of a world do under it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from epe.config.load import build_stage
from epe.messages import LaneVisit, OutputFormat, Progress, Request, Stage
from epe.models.contract import State
from epe.planning.view import Assignment, TrajectoryView, View
from epe.runtime.embedded import EmbeddedDiffusionRuntime
from epe.runtime.rank import Seat
from epe.transport.exchange import Exchange
from tests.world import RankContext

# Each differs from the next in width and in ranks; some are not sorted.
LANES = ((2,), (3, 1), (0, 1, 2), (0, 3), (1, 2, 0, 3), (1,), (2, 0), (3,))
# In planes of two ranks.
NARROW_LANES = ((1,), (1, 0), (0,), (0, 1))
NUM_AT_WORK = 2


def lane_of(step: int, *, world_size: int = 4) -> tuple[int, ...]:
    """Where a request takes this step, as the planner sees it."""
    lanes = LANES if world_size == 4 else NARROW_LANES
    return lanes[step % len(lanes)]


def decode_lane_of(num_steps: int) -> tuple[int, ...]:
    """Where a request of so many steps is decoded, if several ranks may do it together."""
    return lane_of(num_steps + 3)


class Restless:
    """One step a lease, each on another lane. Two requests at a time: after two steps a request is parked until
    the others have caught up."""

    def plan(self, view: View) -> tuple[Assignment, ...]:
        order = sorted(view.trajectories, key=lambda t: (t.step // 2, t.arrival_s, t.request_id))
        free = {rank.rank for rank in view.ranks if rank.num_leases == 0}
        plan = []
        for trajectory in order[:NUM_AT_WORK]:
            lane = self._lane(trajectory, view)
            if trajectory.num_leases == 0 and free.issuperset(lane):
                free.difference_update(lane)
                num_steps = 1 if trajectory.stage is Stage.DENOISE else 0
                plan.append(Assignment(request_id=trajectory.request_id, ranks=lane, num_steps=num_steps))
        return tuple(plan)

    def _lane(self, trajectory: TrajectoryView, view: View) -> tuple[int, ...]:
        lane = lane_of(trajectory.step, world_size=len(view.ranks))
        if trajectory.stage is Stage.DECODE and view.decode_widths != (1,):
            return decode_lane_of(trajectory.num_steps)
        return lane if trajectory.stage is Stage.DENOISE else lane[-1:]


@dataclass(frozen=True)
class Moved:
    """One request that was drawn while it moved, as rank 0 got it."""

    pixels: np.ndarray
    visits: tuple[LaneVisit, ...]
    num_migrations: int


@dataclass(frozen=True)
class Drawn:
    """What one rank saw: the latents that it decoded; on rank 0 also the results, and whose step was done when."""

    latents: dict[str, np.ndarray]
    moved: dict[str, Moved]
    steps: list[str]


def draw_moving(
    context: RankContext,
    checkpoint: str,
    cfg_parallel_degree: int,
    requests: list[Request],
    num_planes: int = 1,
    decodes_in_bands: bool = False,
) -> Drawn:
    """On every rank: the requests under `Restless`, all submitted at once."""
    widths = list(range(1, context.world_size // num_planes + 1))
    stage = build_stage(
        {
            "name": "restless",
            "factory": "zimage",
            "gpu": list(range(context.world_size)),
            "device": "cpu",
            "parallelism": {
                "vae": {"enabled": decodes_in_bands},
                "scheduler": {"policy": f"{__name__}.Restless", "allowed_lane_widths": widths},
                "model": {
                    "cfg_parallel_degree": cfg_parallel_degree,
                    "tensor_parallel_degree": num_planes,
                },
            },
            "factory_args": {"model_path": str(Path(checkpoint))},
        }
    )
    seat = Seat(
        rank=context.rank, world_size=context.world_size, device_index=context.rank, store=context.store
    )
    return asyncio.run(_draw(EmbeddedDiffusionRuntime(stage, seat=seat), requests))


async def _draw(runtime: EmbeddedDiffusionRuntime, requests: list[Request]) -> Drawn:
    drawn = Drawn(latents={}, moved={}, steps=[])
    async with runtime:
        _keep_decoded(runtime, drawn.latents)
        if runtime.is_leader:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(_draw_one(runtime, request, drawn))
    return drawn


def _keep_decoded(runtime: EmbeddedDiffusionRuntime, latents: dict[str, np.ndarray]) -> None:
    """Latents leave a rank as pixels alone; here a copy stays."""
    assert runtime._rank is not None
    assert runtime._rank._device is not None
    adapter: Any = runtime._rank._device.adapter
    decode = adapter.decode

    def decode_and_keep(state: State, exchange: Exchange | None) -> np.ndarray | None:
        latents[state.request.id] = state.tensors["latents"].numpy().copy()
        pixels: np.ndarray | None = decode(state, exchange)
        return pixels

    adapter.decode = decode_and_keep


async def _draw_one(runtime: EmbeddedDiffusionRuntime, request: Request, drawn: Drawn) -> None:
    def watch(progress: Progress) -> None:
        if progress.stage is Stage.DENOISE:
            drawn.steps.append(progress.request_id)

    assert request.output_format is OutputFormat.RAW
    handle = await runtime.submit(request, watcher=watch)
    result = await handle.result()
    account = result.account
    drawn.moved[request.id] = Moved(
        np.asarray(result.pixels)[0], account.visits, num_migrations=account.num_migrations
    )
