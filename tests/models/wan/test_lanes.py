"""The same bits at every width and across every move, on lanes of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import WanPipeline

from epe.messages import Split
from epe.models.wan.adapter import WanAdapter
from tests.lanes import on_lane
from tests.models.trajectories import advance, drawn_by_lane, drawn_with_moves, same, solo
from tests.models.wan.drawing import LONG, SIZES, make_request, of_size
from tests.oracle import latents_of, pixels_of

SPLITS = [Split(cp=2), Split(cp=3), Split(cp=4), Split(cfg=2, cp=1), Split(cfg=2, cp=2)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_every_lane_gives_the_pipelines_bits(
    size: tuple[int, int, int], split: Split, adapters: list[WanAdapter], pipeline: WanPipeline
) -> None:
    request = of_size(size, num_steps=3)
    expected = latents_of(pipeline, request)
    assert all(torch.equal(drawn, expected) for drawn in drawn_by_lane(adapters, request, split))


@pytest.mark.parametrize("size", SIZES[:3], ids=str)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_sharing_heads_gives_the_pipelines_bits(
    size: tuple[int, int, int], split: Split, ulysses: list[WanAdapter], pipeline: WanPipeline
) -> None:
    request = of_size(size, num_steps=3)
    expected = latents_of(pipeline, request)
    assert all(torch.equal(drawn, expected) for drawn in drawn_by_lane(ulysses, request, split))


@pytest.mark.parametrize("length", [512, 226, 35])
def test_text_of_any_length_gives_equal_bits_at_every_width(
    length: int, adapters: list[WanAdapter], pipeline: WanPipeline
) -> None:
    request = make_request(max_sequence_length=length, num_steps=2)
    expected = latents_of(pipeline, request)
    for split in (Split(cp=2), Split(cp=3)):
        assert all(torch.equal(drawn, expected) for drawn in drawn_by_lane(adapters, request, split))


@pytest.mark.parametrize("width", [2, 3, 4])
def test_without_guidance_every_width_gives_the_pipelines_bits(
    width: int, adapters: list[WanAdapter], pipeline: WanPipeline
) -> None:
    request = make_request(guidance_scale=0.0, prompt=LONG)
    expected = latents_of(pipeline, request)
    assert all(torch.equal(d, expected) for d in drawn_by_lane(adapters, request, Split(cp=width)))


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_request_that_moves_at_every_step_boundary_keeps_its_bits_and_its_history(
    first: int, adapters: list[WanAdapter]
) -> None:
    splits = [Split(), *SPLITS]
    request = make_request(num_steps=6)
    turns = [splits[(first + step) % len(splits)] for step in range(request.num_steps)]
    moved = drawn_with_moves(adapters, adapters[0].encode(request), turns)
    assert same(moved, solo(adapters[0], request))


def test_a_video_has_the_same_frames_at_every_width(
    adapters: list[WanAdapter], pipeline: WanPipeline
) -> None:
    request = of_size((64, 80, 9), num_steps=2)
    expected = pixels_of(pipeline, request)
    assert expected.shape == (9, 64, 80, 3)
    for split in (Split(), *SPLITS):

        def draw(exchange: Any, split: Split = split) -> np.ndarray:
            adapter = adapters[exchange.position]
            state = advance(adapter, adapter.encode(request), exchange, split, num_steps=request.num_steps)
            return adapter.decode(state).numpy()

        videos = on_lane(split.width, draw)
        assert all(np.array_equal(video, expected) for video in videos), split
