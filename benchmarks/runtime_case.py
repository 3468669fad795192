"""What the ranks of a world do in `benchmarks.h200_families` with the whole runtime: planner, leases, links, lanes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.family_cases import Line, pixel_difference
from benchmarks.place import Case, Place, Setting
from benchmarks.real_sizes import MODELS
from epe.messages import Request
from epe.models.catalog import make_tiny
from tests.oracle import load_oracle, pixels_of
from tests.runtime.on_ranks import draw_together
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
    drawn = draw_together(context, _stage(place, checkpoint), requests)
    if drawn is None:
        return None
    oracle = load_oracle(checkpoint, device=str(place.device), dtype=place.dtype)
    expected = [pixels_of(oracle, request) for request in requests]
    differences = [pixel_difference(*pair) for pair in zip(drawn, expected, strict=True)]
    return {"num_requests": NUM_REQUESTS, "pixel_difference": max(differences)}


def _stage(place: Place, checkpoint: Path) -> dict[str, object]:
    """With branches as one batch where the pipeline has them so, and pictures decoded whole: for its bits."""
    world_size, setting = place.context.world_size, place.setting
    model = {"cfg_parallel_degree": 1} if place.family.owns("cfg") else {}
    return {
        "name": "families",
        "factory": place.family.name,
        "gpu": list(range(world_size)),
        "device": setting.device,
        "dtype": setting.dtype,
        "parallelism": {"model": model, "vae": {"enabled": False}},
        "factory_args": {"model_path": str(checkpoint)},
    }


def _small_request(place: Place, number: int) -> Request:
    """Eight that differ in size and number of steps."""
    height, width, num_frames = MODELS[place.family.name].tiny_sizes[number % 2]
    width += 16 * (number // 2)
    return place.request_of(f"r{number}", height, width, num_frames, num_steps=2 + number % 3)
