"""The same bits at every width and across every move, on lanes of threads."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from diffusers import ZImagePipeline

from epe.messages import Request, Split
from epe.models.contract import State
from epe.models.zimage.adapter import ZImageAdapter
from tests.lanes import on_lane
from tests.models.trajectories import drawn_by_lane, solo
from tests.models.zimage.drawing import PROMPTS, SIZES, make_request
from tests.oracle import latents_of

SPLITS = [Split(cp=2), Split(cp=3), Split(cp=4), Split(cfg=2, cp=1), Split(cfg=2, cp=2)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("width", [2, 3, 4])
def test_branches_together_give_the_pipelines_bits_at_every_width(
    size: tuple[int, int],
    prompts: tuple[str, str],
    width: int,
    together: list[ZImageAdapter],
    pipeline: ZImagePipeline,
) -> None:
    request = make_request(
        prompt=prompts[0], negative_prompt=prompts[1], height=size[0], width=size[1], num_steps=2
    )
    expected = latents_of(pipeline, request)
    assert all(torch.equal(drawn, expected) for drawn in drawn_by_lane(together, request, Split(cp=width)))


@pytest.mark.parametrize("size", SIZES[:3])
@pytest.mark.parametrize("width", [2, 3, 4])
def test_ranks_that_share_heads_give_the_pipelines_bits_at_every_width(
    size: tuple[int, int], width: int, by_heads: list[ZImageAdapter], pipeline: ZImagePipeline
) -> None:
    # Three heads: uneven on two ranks, one each on three, two teams of two on four.
    request = make_request(height=size[0], width=size[1], num_steps=2)
    expected = latents_of(pipeline, request)
    assert all(torch.equal(drawn, expected) for drawn in drawn_by_lane(by_heads, request, Split(cp=width)))


@pytest.mark.parametrize("size", SIZES[:3])
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_branches_apart_give_equal_bits_at_every_width(
    size: tuple[int, int], split: Split, apart: list[ZImageAdapter]
) -> None:
    request = make_request(height=size[0], width=size[1])
    expected = solo(apart[0], request).tensors["latents"]
    assert all(torch.equal(drawn, expected) for drawn in drawn_by_lane(apart, request, split))


@pytest.mark.parametrize("width", [2, 3, 4])
def test_without_guidance_every_width_gives_the_pipelines_bits(
    width: int, together: list[ZImageAdapter], apart: list[ZImageAdapter], pipeline: ZImagePipeline
) -> None:
    request = make_request(guidance_scale=0.0)
    expected = latents_of(pipeline, request)
    for adapters in (together, apart):
        assert all(torch.equal(d, expected) for d in drawn_by_lane(adapters, request, Split(cp=width)))


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_request_that_moves_at_every_step_boundary_keeps_its_bits(
    first: int, together: list[ZImageAdapter], apart: list[ZImageAdapter]
) -> None:
    request = make_request(num_steps=5)
    for adapters, splits in (
        (together, [Split(), Split(cp=2), Split(cp=3), Split(cp=4)]),
        (apart, [Split(), *SPLITS]),
    ):
        turns = [splits[(first + step) % len(splits)] for step in range(request.num_steps)]
        moved = _draw_with_moves(adapters, adapters[0].encode(request), turns)
        assert torch.equal(moved.tensors["latents"], solo(adapters[0], request).tensors["latents"])


def _draw_with_moves(adapters: list[ZImageAdapter], state: State, turns: list[Split]) -> State:
    """One step a turn, each on another lane, whose ranks have only what the last lane exported."""
    for turn, split in enumerate(turns):
        parcel = adapters[turn % len(adapters)].export_state(state)
        states = on_lane(split.cfg * split.cp, partial(_step_from, adapters, state.request, parcel, split))
        assert all(torch.equal(s.tensors["latents"], states[0].tensors["latents"]) for s in states)
        state = states[-1]
    return state


def _step_from(
    adapters: list[ZImageAdapter], request: Request, parcel: Any, split: Split, exchange: Any
) -> State:
    adapter = adapters[exchange.position]
    return adapter.step(adapter.import_state(request, *parcel), exchange, split)


def test_guidance_may_come_and_go_from_request_to_request_on_one_lane(apart: list[ZImageAdapter]) -> None:
    guided, plain = make_request(), make_request(guidance_scale=0.0)
    expected = [solo(apart[0], request).tensors["latents"] for request in (guided, plain, guided)]
    drawn = [
        drawn_by_lane(apart, request, split)[1]
        for request, split in ((guided, Split(cfg=2)), (plain, Split(cp=2)), (guided, Split(cfg=2)))
    ]
    assert all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))


def test_a_stage_with_branches_together_refuses_to_split_them(together: list[ZImageAdapter]) -> None:
    with pytest.raises(ValueError, match="one batch"):
        drawn_by_lane(together, make_request(), Split(cfg=2))
