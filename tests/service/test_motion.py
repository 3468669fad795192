"""A request that moves at every step boundary, and is parked now and then, is drawn with the bits of one that rests."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from epe.cache import CacheRules, resolve
from epe.messages import OutputFormat, Request, Split, Stage, TaylorSeer, TeaCache
from epe.models.loading import Loading
from epe.models.reusing import num_computed
from epe.models.zimage.adapter import load
from epe.transport.exchange import SoloExchange
from tests.models.planes import Planes
from tests.models.trajectories import solo
from tests.models.zimage.drawing import LONG, SHORT, make_request
from tests.service.conftest import Drawn as Oracle
from tests.service.restless import Drawn, Moved, decode_lane_of, draw_moving, lane_of
from tests.world import World

pytestmark = pytest.mark.world

REQUESTS = [
    make_request(
        id=f"r{seed}",
        seed=seed,
        height=height,
        width=width,
        num_steps=num_steps,
        prompt=prompt,
        negative_prompt="",
        guidance_scale=guidance_scale,
        output_format=OutputFormat.RAW,
    )
    for seed, (height, width, num_steps, prompt, guidance_scale) in enumerate(
        [
            (272, 304, 9, SHORT, 5.0),
            (272, 304, 8, LONG, 5.0),
            (64, 96, 11, SHORT, 0.0),
            (208, 80, 7, LONG, 3.0),
        ]
    )
]
CACHED = [
    replace(REQUESTS[0], id="taylor", num_steps=10, reuse=resolve(TaylorSeer(), CacheRules(), num_steps=10)),
    replace(
        REQUESTS[3],
        id="tea",
        num_steps=9,
        reuse=resolve(TeaCache(threshold=0.3, coefficients=(1.0, 0.0)), CacheRules(), num_steps=9),
    ),
]


def longest_stay(steps: list[str], request_id: str) -> int:
    """The most steps of others between two steps of a request."""
    own = [index for index, each in enumerate(steps) if each == request_id]
    return max(after - before - 1 for before, after in pairwise(own))


def check_that_it_moved(request: Request, moved: Moved) -> None:
    visits = [visit for visit in moved.visits if visit.stage is Stage.DENOISE]
    assert [visit.ranks for visit in visits] == [lane_of(step) for step in range(request.num_steps)]
    assert all(visit.num_steps == 1 for visit in visits)
    assert moved.num_migrations >= request.num_steps - 2


@pytest.mark.parametrize("cfg_parallel_degree", [1, 2])
def test_moving_at_every_step_and_being_parked_changes_no_bit(
    cfg_parallel_degree: int, world: World, tiny_zimage: Path, diffusers_draws: Oracle
) -> None:
    requests = [*REQUESTS, *CACHED]
    ranks: list[Drawn] = world.run(draw_moving, str(tiny_zimage), cfg_parallel_degree, requests)
    adapter = load(tiny_zimage, Loading(device=torch.device("cpu"), cfg_parallel_degree=cfg_parallel_degree))
    steps = ranks[0].steps
    assert max(longest_stay(steps, request.id) for request in requests) >= 3, "nothing was parked"
    for request in requests:
        moved = ranks[0].moved[request.id]
        check_that_it_moved(request, moved)
        resting = solo(adapter, request)
        (latents,) = [rank.latents[request.id] for rank in ranks if request.id in rank.latents]
        assert np.array_equal(latents, resting.tensors["latents"].numpy())
        assert np.array_equal(moved.pixels, adapter.decode(resting)[0].numpy())
        if request.reuse is not None:
            assert num_computed(adapter.encode(request), resting) < request.num_steps
        elif cfg_parallel_degree == 1:
            assert np.array_equal(moved.pixels, by_diffusers(diffusers_draws, request))


def test_moving_over_planes_changes_no_bit_either(world: World, tiny_zimage: Path) -> None:
    ranks: list[Drawn] = world.run(draw_moving, str(tiny_zimage), 2, REQUESTS, 2)
    planes = Planes(tiny_zimage, cfg_parallel_degree=2)
    for request in REQUESTS:
        visits = [visit for visit in ranks[0].moved[request.id].visits if visit.stage is Stage.DENOISE]
        lanes = [lane_of(step, world_size=2) for step in range(request.num_steps)]
        assert [visit.ranks for visit in visits] == [(*lane, *(rank + 2 for rank in lane)) for lane in lanes]
        ((rank, latents),) = [
            (n, r.latents[request.id]) for n, r in enumerate(ranks) if request.id in r.latents
        ]
        assert rank < 2, "the first plane decodes"
        assert np.array_equal(latents, planes.draw(request, Split(tp=2))[0].numpy())


def test_a_decode_over_any_lane_changes_no_pixel(world: World, tiny_zimage: Path) -> None:
    ranks: list[Drawn] = world.run(draw_moving, str(tiny_zimage), 2, REQUESTS, 1, True)
    adapter = load(tiny_zimage, Loading(device=torch.device("cpu"), cfg_parallel_degree=2))
    for request in REQUESTS:
        moved, resting = ranks[0].moved[request.id], solo(adapter, request)
        (visit,) = [visit for visit in moved.visits if visit.stage is Stage.DECODE]
        assert visit.ranks == decode_lane_of(request.num_steps)
        assert {n for n, rank in enumerate(ranks) if request.id in rank.latents} == set(visit.ranks)
        in_bands, whole = adapter.decode(resting, SoloExchange()), adapter.decode(resting)
        assert in_bands is not None
        assert whole is not None
        assert np.array_equal(moved.pixels, in_bands[0].numpy())
        assert np.abs(moved.pixels.astype(int) - whole[0].numpy()).max() <= 1
    assert {len(decode_lane_of(request.num_steps)) for request in REQUESTS} == {2, 3, 4}


def by_diffusers(oracle: Oracle, request: Request) -> np.ndarray:
    return oracle(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        size=f"{request.width}x{request.height}",
        num_inference_steps=request.num_steps,
        seed=request.seed,
        guidance_scale=request.guidance_scale,
    )
