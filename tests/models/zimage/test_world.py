"""The same bits on real lanes: four processes over gloo."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from diffusers import ZImagePipeline

from epe.messages import Request, Split
from epe.models.zimage.adapter import ZImageAdapter
from tests.models.on_ranks import Loading, Turn, draw
from tests.models.trajectories import solo
from tests.models.zimage.drawing import LONG, SHORT, make_request
from tests.oracle import latents_of
from tests.world import World

pytestmark = pytest.mark.world

# Both branches as one batch.
AS_THE_PIPELINE = Loading(cfg_parallel_degree=1)
REQUESTS = [
    make_request(height=256, width=256, prompt=LONG, negative_prompt=""),
    make_request(height=272, width=304, prompt=SHORT, negative_prompt=LONG),
    make_request(height=512, width=512, num_steps=2),
    make_request(height=272, width=304, guidance_scale=0.0),
]
# Ranks in an order that is not sorted, and lanes that share ranks with the one before.
MOVES: list[Turn] = [
    ((2,), Split(), 1),
    ((3, 1), Split(cp=2), 1),
    ((0, 1, 2), Split(cp=3), 1),
    ((2, 0, 3, 1), Split(cp=4), 1),
    ((1,), Split(), 1),
    ((0, 3), Split(cp=2), 1),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: f"{r.height}x{r.width} g{r.guidance_scale}")
@pytest.mark.parametrize("ranks", [(1,), (3, 0), (2, 1, 0), (0, 1, 2, 3)], ids=len)
def test_a_lane_over_gloo_draws_the_pipelines_latents(
    request_: Request, ranks: tuple[int, ...], world: World, tiny_zimage: Path, pipeline: ZImagePipeline
) -> None:
    turns: list[Turn] = [(ranks, Split(cp=len(ranks)), request_.num_steps)]
    expected = latents_of(pipeline, request_).numpy()
    drawn = [
        d
        for d in world.run(draw, str(tiny_zimage), request_, turns, Loading(cfg_parallel_degree=1))
        if d is not None
    ]
    assert len(drawn) == len(ranks)
    assert all(np.array_equal(latents, expected) for latents in drawn)


@pytest.mark.parametrize(
    ("ranks", "split"),
    [
        ((1, 0), Split(cfg=2, cp=1)),
        ((1, 0), Split(cp=2)),
        ((2, 1, 0), Split(cp=3)),
        ((3, 1, 2, 0), Split(cfg=2, cp=2)),
        ((3, 1, 2, 0), Split(cp=4)),
    ],
    ids=str,
)
def test_branches_apart_over_gloo_give_the_bits_of_one_rank(
    ranks: tuple[int, ...], split: Split, world: World, tiny_zimage: Path, apart: list[ZImageAdapter]
) -> None:
    request = make_request()
    expected = solo(apart[0], request).tensors["latents"].numpy()
    drawn = world.run(draw, str(tiny_zimage), request, [(ranks, split, request.num_steps)])
    assert all(np.array_equal(drawn[rank], expected) for rank in ranks)


def test_a_request_that_moves_between_lanes_at_every_boundary_keeps_its_bits(
    world: World, tiny_zimage: Path, pipeline: ZImagePipeline
) -> None:
    request = make_request(num_steps=len(MOVES))
    drawn = world.run(draw, str(tiny_zimage), request, MOVES, AS_THE_PIPELINE)
    expected = latents_of(pipeline, request).numpy()
    assert all(np.array_equal(drawn[rank], expected) for rank in MOVES[-1][0])


def test_a_lane_whose_guidance_splits_and_joins_between_steps_keeps_its_bits(
    world: World, tiny_zimage: Path, apart: list[ZImageAdapter]
) -> None:
    request = make_request(num_steps=len(MOVES))
    turns: list[Turn] = [(r, Split(cfg=2, cp=len(r) // 2) if len(r) % 2 == 0 else s, n) for r, s, n in MOVES]
    drawn = world.run(draw, str(tiny_zimage), request, turns)
    expected = solo(apart[0], request).tensors["latents"].numpy()
    assert all(np.array_equal(drawn[rank], expected) for rank in turns[-1][0])
