"""The same bits at every width, by either method, and across every move, on lanes of threads."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from epe.messages import Split
from epe.models.contract import Adapter, State
from tests.lanes import on_lane
from tests.models.flux.drawing import Subject
from tests.models.trajectories import advance, drawn_by_lane, drawn_with_moves, same, solo

# AGKV, heads shared by as many as there are (three, so that a lane of four is two teams of two), by two at most, and
# what each lane finds faster.
METHODS = [("agkv", None), ("ulysses", None), ("ulysses", 2), ("auto", None)]


# Picture sizes with text rows that each are padded to: those that a lane shares, evenly or not, and those that are
# whole on each rank.
CASES = [
    ((64, 64), 48),
    ((64, 64), 512),
    ((256, 256), 150),
    ((272, 304), 512),
    ((272, 304), 130),
    ((512, 512), 64),
]


@pytest.mark.parametrize(("size", "num_text"), CASES, ids=str)
def test_every_width_and_method_gives_the_pipelines_bits(
    size: tuple[int, int], num_text: int, subject: Subject
) -> None:
    request = subject.request(height=size[0], width=size[1], max_sequence_length=num_text, num_steps=1)
    expected, state = subject.latents(request), subject.adapter.encode(request)
    for width, method in product((2, 3, 4), METHODS):
        drawn = _drawn_from(state, subject.adapters(*method), width)
        assert all(torch.equal(latents, expected) for latents in drawn), (width, method)


@pytest.mark.parametrize("width", [2, 3, 4])
def test_without_a_second_branch_every_width_gives_the_pipelines_bits(width: int, subject: Subject) -> None:
    request = subject.request(guidance_scale=1.0, num_steps=2)
    expected, state = subject.latents(request), subject.adapter.encode(request)
    drawn = _drawn_from(state, subject.adapters("ulysses", None), width)
    assert all(torch.equal(latents, expected) for latents in drawn)


def _drawn_from(state: State, adapters: list[Adapter], width: int) -> list[torch.Tensor]:
    """The finished latents of every rank of a lane; all begin with the same state."""

    def draw(exchange: Any) -> torch.Tensor:
        adapter, split = adapters[exchange.position], Split(cp=width)
        ended = advance(adapter, state, exchange, split, num_steps=state.request.num_steps)
        return ended.tensors["latents"]

    return on_lane(width, draw)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_request_that_moves_at_every_step_boundary_keeps_its_bits(
    first: int, method: tuple[str, int | None], subject: Subject
) -> None:
    adapters, request = subject.adapters(*method), subject.request(num_steps=5)
    splits = [Split(cp=width) for width in (1, 2, 3, 4)]
    turns = [splits[(first + step) % len(splits)] for step in range(request.num_steps)]
    moved = drawn_with_moves(adapters, adapters[0].encode(request), turns)
    assert same(moved, solo(adapters[0], request))


def test_a_lane_that_leaves_a_rank_too_few_picture_rows_is_an_error(subject: Subject) -> None:
    with pytest.raises(ValueError, match="fewer than 4 of 8 rows; the widest lane for them is 2"):
        drawn_by_lane(subject.adapters("agkv"), subject.request(height=64, width=32), Split(cp=3))
