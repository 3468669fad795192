"""Blocks as compiled ones are, here left to torch: which products they have, and that they draw the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from epe.messages import Split
from tests.models.every_family import adapters_of, make_request
from tests.models.trajectories import WIDTHS, drawn_by_lane, solo


class CountedProducts(TorchDispatchMode):
    """Of linear layers, by the features of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.features: Counter[int] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = operation(*args, **(kwargs or {}))
        if operation in (torch.ops.aten.linear.default, torch.ops.aten.addmm.default):
            self.features[given.shape[-1]] += 1
        return given


@pytest.fixture(scope="module")
def all_fast(tiny_zimage: Path) -> list[Any]:
    """One adapter a rank, which no test changes."""
    adapters: list[Any] = adapters_of(tiny_zimage, max(WIDTHS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("epe.models.capturing.compile_blocks", lambda *args, **how: None)
        for adapter in adapters:
            adapter.compile_blocks()
    return adapters


@pytest.fixture(scope="module")
def fast(all_fast: list[Any]) -> Any:
    return all_fast[0]


@pytest.fixture(scope="module")
def plain(tiny_zimage: Path) -> Any:
    return adapters_of(tiny_zimage, 1)[0]


def test_guided_steps_are_those_of_blocks_as_they_are(tiny_zimage: Path, plain: Any, fast: Any) -> None:
    request = make_request(tiny_zimage, height=64, width=96, num_steps=2)
    expected, drawn = (solo(each, request).tensors["latents"] for each in (plain, fast))
    torch.testing.assert_close(drawn, expected, rtol=0, atol=2e-5)


def test_all_blocks_modulations_are_one_product(tiny_zimage: Path, fast: Any) -> None:
    model = fast.pipeline.transformer
    num_blocks = len(model.noise_refiner) + len(model.layers)
    with CountedProducts() as counted:
        solo(fast, make_request(tiny_zimage, height=64, width=96, num_steps=1))
    assert counted.features[4 * model.config.dim] == 0
    assert counted.features[4 * model.config.dim * num_blocks] == 1


def test_weights_that_are_joined_are_there_once(plain: Any, fast: Any) -> None:
    held = [
        {
            weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes()
            for weight in adapter.pipeline.transformer.parameters()
        }
        for adapter in (plain, fast)
    ]
    assert sum(held[1].values()) == sum(held[0].values())


def test_queries_keys_and_values_of_a_block_are_one_product(tiny_zimage: Path, fast: Any) -> None:
    model = fast.pipeline.transformer
    num_blocks = len(model.noise_refiner) + len(model.context_refiner) + len(model.layers)
    with CountedProducts() as counted:
        solo(fast, make_request(tiny_zimage, height=64, width=96, num_steps=1))
    assert counted.features[3 * model.config.dim] == num_blocks


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_ranks_of_a_lane_have_the_bits_of_one_alone(
    width: int, tiny_zimage: Path, all_fast: list[Any]
) -> None:
    request = make_request(tiny_zimage, height=64, width=96, num_steps=2)
    expected = solo(all_fast[0], request).tensors["latents"]
    assert all(
        torch.equal(drawn, expected) for drawn in drawn_by_lane(all_fast[:width], request, Split(cp=width))
    )
