"""What the ranks of a world do in `benchmarks.h200_families` with the whole runtime: planner, leases, links, lanes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from benchmarks.family_cases import Line, pixel_difference
from benchmarks.place import Case, Place, Setting
from benchmarks.real_sizes import MODELS
from epe.config.load import build_stage
from epe.messages import Request
from epe.models.catalog import make_tiny
from epe.runtime.embedded import EmbeddedDiffusionRuntime
from epe.runtime.rank import Seat
from tests.oracle import draw, load_oracle
from tests.world import RankContext

NUM_REQUESTS = 8


def runtime(context: RankContext, setting: Setting, case: Case) -> Line | None:
    """Eight requests at once through the runtime on all ranks, with a tiny checkpoint, against the pipeline."""
    place = Place(context, setting, case, kind="runtime")
    checkpoint = Path(case.folder) / case.family
    if context.rank == 0:
        make_tiny(case.family, checkpoint)
        context.store.set("checkpoint", "is written")
    context.store.get("checkpoint")
    requests = [_small_request(place, number) for number in range(NUM_REQUESTS)]
    drawn = asyncio.run(_through_runtime(place, checkpoint, requests))
    if drawn is None:
        return None
    oracle = load_oracle(checkpoint, device=str(place.device), dtype=place.dtype)
    expected = [draw(oracle, request, family=place.family, pixels=True).pixels for request in requests]
    differences = [pixel_difference(*pair) for pair in zip(drawn, expected, strict=True)]
    return {"num_requests": NUM_REQUESTS, "pixel_difference": max(differences)}


async def _through_runtime(
    place: Place, checkpoint: Path, requests: list[Request]
) -> list[np.ndarray] | None:
    """Their pixels, on rank 0."""
    context = place.context
    seat = Seat(
        rank=context.rank,
        world_size=context.world_size,
        device_index=context.rank,
        store=context.store,
    )
    stage = build_stage(_stage(place, checkpoint))
    async with EmbeddedDiffusionRuntime(stage, seat=seat) as engine:
        if not engine.is_leader:
            return None
        handles = [await engine.submit(request) for request in requests]
        return [np.asarray((await handle.result()).pixels) for handle in handles]


def _stage(place: Place, checkpoint: Path) -> dict[str, object]:
    """With branches as one batch where the pipeline has them so, for its bits."""
    world_size, setting = place.context.world_size, place.setting
    model = {"cfg_parallel_degree": 1} if place.family.owns("cfg") else {}
    return {
        "name": "families",
        "factory": place.family.name,
        "gpu": list(range(world_size)),
        "device": setting.device,
        "dtype": setting.dtype,
        "parallelism": {"model": model},
        "factory_args": {"model_path": str(checkpoint)},
    }


def _small_request(place: Place, number: int) -> Request:
    """Eight that differ in size and number of steps."""
    height, width, num_frames = MODELS[place.family.name].tiny_sizes[number % 2]
    width += 16 * (number // 2)
    return place.request_of(f"r{number}", height, width, num_frames, num_steps=2 + number % 3)
