"""What every family draws, on lanes of threads: eight ranks, sizes that people ask for, and what decides a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from epe.families import FAMILIES
from epe.messages import Split
from epe.transport.exchange import SoloExchange
from tests.lanes import ThreadExchange, on_lane
from tests.models.every_family import Ranks, adapters_of, make_request
from tests.models.trajectories import drawn_by_lane, solo
from tests.oracle import latents_of

# (height, width): 3969, 3600, 4080, 3969 and 3600 rows, which 2, 3, 4 or 8 ranks cannot share evenly, or in rows whose
# number is no multiple of what kernels take at once.
SIZES = {
    "zimage": (1008, 1008),
    "flux1": (720, 1280),
    "flux2-klein": (1360, 768),
    "qwen-image": (1008, 1008),
    "wan": (720, 1280),
}


@pytest.mark.parametrize(
    "loading",
    [{}, {"attention_mode": "ulysses"}, {"attention_mode": "ulysses", "ulysses_degree": 2}],
    ids=str,
)
def test_eight_ranks_give_the_pipelines_bits(
    loading: dict[str, Any], ranks: Ranks, checkpoint: Path, oracle: Any
) -> None:
    request = make_request(checkpoint, num_steps=2)
    expected = latents_of(oracle, request)
    adapters = adapters_of(checkpoint, 8, **loading) if loading else ranks(8)
    drawn = drawn_by_lane(adapters, request, Split(cp=8))
    assert all(torch.equal(latents, expected) for latents in drawn)


def test_sizes_that_no_width_divides_give_the_pipelines_bits(
    ranks: Ranks, checkpoint: Path, oracle: Any
) -> None:
    height, width = SIZES[checkpoint.name]
    num_steps = FAMILIES[checkpoint.name].min_steps
    request = make_request(checkpoint, height=height, width=width, num_frames=1, num_steps=num_steps)
    expected = latents_of(oracle, request)
    adapters = ranks(4)
    for lane_width in (2, 3, 4):
        drawn = drawn_by_lane(adapters, request, Split(cp=lane_width))
        assert all(torch.equal(latents, expected) for latents in drawn), lane_width


def test_the_seed_decides_the_picture(ranks: Ranks, checkpoint: Path) -> None:
    (adapter,) = ranks(1)
    first, again, other = (
        adapter.decode(solo(adapter, make_request(checkpoint, height=64, width=64, seed=seed))).numpy()
        for seed in (5, 5, 6)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_decode_has_the_same_pixels_on_every_lane_and_nearly_those_of_the_whole(
    ranks: Ranks, checkpoint: Path
) -> None:
    adapters = ranks(4)
    state = adapters[0].encode(make_request(checkpoint, height=272, width=80))
    alone, whole = adapters[0].decode(state, SoloExchange()), adapters[0].decode(state)
    assert alone is not None
    assert whole is not None
    assert (alone.int() - whole.int()).abs().max() <= 1
    for width in (2, 3, 4):

        def decode(exchange: ThreadExchange) -> np.ndarray | None:
            return adapters[exchange.position].decode(state, exchange)  # type: ignore[arg-type]

        first, *others = on_lane(width, decode)
        assert np.array_equal(first, alone), width
        assert others == [None] * (width - 1)
