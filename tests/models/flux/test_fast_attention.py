"""FLUX's attention as compiled blocks have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from epe.models.catalog import make_tiny
from epe.models.flux_attention import make_attention_fast
from tests.models.every_family import adapters_of, make_request
from tests.models.flux.drawing import FAMILIES
from tests.models.trajectories import solo


class CountedTurns(TorchDispatchMode):
    """Of how many streams there were queries or keys in each norm with rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[int] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation is torch.ops.epe.normed_and_rotated.default:
            self.streams.append(len(args[0]))
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_block_norms_and_rotates_by_two_operations_alone(tmp_path: Path, family: str) -> None:
    checkpoint = tmp_path / family
    make_tiny(family, checkpoint)
    plain, fast = adapters_of(checkpoint, 2)
    model = fast.pipeline.transformer  # type: ignore[attr-defined]
    make_attention_fast(model)
    fast.sharding.share_attention()  # type: ignore[attr-defined]
    request = make_request(checkpoint, height=64, width=96, num_steps=1, guidance_scale=1.0)
    expected = solo(plain, request).tensors["latents"]
    with CountedTurns() as counted:
        drawn = solo(fast, request).tensors["latents"]
    num_double, num_single = len(model.transformer_blocks), len(model.single_transformer_blocks)
    assert counted.streams == [2] * 2 * num_double + [1] * 2 * num_single
    torch.testing.assert_close(drawn, expected, rtol=0, atol=2e-5)
