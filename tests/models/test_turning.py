"""Queries and keys of compiled blocks are normed and rotated by one operation each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from epe.models.catalog import make_tiny
from epe.models.wan.attention import make_attention_fast
from tests.models.every_family import adapters_of, make_request
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


def tiny(tmp_path: Path, family: str) -> Path:
    checkpoint = tmp_path / family
    make_tiny(family, checkpoint)
    return checkpoint


@pytest.mark.parametrize("family", ["flux1", "flux2-klein", "wan"])
def test_each_block_turns_its_queries_and_its_keys_once(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny(tmp_path, family)
    plain, fast = adapters_of(checkpoint, 2)
    monkeypatch.setattr("epe.models.capturing.compile_blocks", lambda *args, **how: None)
    fast.compile_blocks()  # type: ignore[attr-defined]
    model = fast.pipeline.transformer  # type: ignore[attr-defined]
    request = make_request(checkpoint, height=64, width=96, num_steps=1, guidance_scale=1.0)
    expected = solo(plain, request).tensors["latents"]
    with CountedTurns() as counted:
        drawn = solo(fast, request).tensors["latents"]
    if family == "wan":
        assert counted.streams == [1] * 2 * len(model.blocks)
    else:
        num_double, num_single = len(model.transformer_blocks), len(model.single_transformer_blocks)
        assert counted.streams == [2] * 2 * num_double + [1] * 2 * num_single
    torch.testing.assert_close(drawn, expected, rtol=0, atol=2e-5)


def test_norms_that_planes_share_are_left_to_them(tmp_path: Path) -> None:
    """The kernel would norm the heads of one plane by themselves."""
    (adapter,) = adapters_of(tiny(tmp_path, "wan"), 1)
    model = adapter.pipeline.transformer  # type: ignore[attr-defined]
    model.blocks[0].attn1.norm_q = nn.Identity()
    before = [block.attn1.processor for block in model.blocks]
    make_attention_fast(model)
    assert [block.attn1.processor for block in model.blocks] == before
    assert not model.rope._forward_hooks
