"""Norm and rotation as one operation."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from diffusers.models.normalization import RMSNorm
from diffusers.models.transformers.transformer_qwenimage import apply_rotary_emb_qwen

from epe.parallel.rotating import kernel_works, normed_and_rotated
from epe.telemetry.log import configure
from tests.world import ROOT

DEPTH = 16


def tables(*rows: int) -> list[torch.Tensor]:
    angles = [torch.rand(num, DEPTH // 2, generator=torch.Generator().manual_seed(num)) for num in rows]
    return [torch.polar(torch.ones_like(each), 6 * each) for each in angles]


@torch.inference_mode()
def test_streams_are_normed_and_rotated_as_diffusers_does_and_joined() -> None:
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(2, rows, 3, DEPTH, generator=generator) for rows in (3, 5)]
    norms = [RMSNorm(DEPTH, eps=1e-6) for _ in parts]
    for norm in norms:
        norm.weight.copy_(torch.randn(DEPTH, generator=generator))
    turns = tables(3, 5)
    rotated = [
        apply_rotary_emb_qwen(norm(part), turn, use_real=False)
        for part, norm, turn in zip(parts, norms, turns, strict=True)
    ]
    joined = normed_and_rotated(
        parts, [norm.weight for norm in norms], [torch.view_as_real(turn) for turn in turns], 1e-6
    )
    assert joined.is_contiguous()
    torch.testing.assert_close(joined, torch.cat(rotated, dim=1), rtol=0, atol=5e-6)


@torch.inference_mode()
def test_heads_may_be_normed_together_as_those_of_wan_are() -> None:
    generator = torch.Generator().manual_seed(1)
    part, weight = (
        torch.randn(2, 5, 3, DEPTH, generator=generator),
        torch.randn(3 * DEPTH, generator=generator),
    )
    (turn,) = tables(5)
    normed = torch.nn.functional.rms_norm(part.flatten(2), (3 * DEPTH,), weight, 1e-6)
    expected = apply_rotary_emb_qwen(normed.unflatten(2, (3, DEPTH)), turn, use_real=False)
    turned = normed_and_rotated((part,), (weight,), (torch.view_as_real(turn),), 1e-6)
    torch.testing.assert_close(turned, expected, rtol=0, atol=5e-6)


@torch.inference_mode()
def test_each_request_of_a_batch_may_have_a_table_of_its_own() -> None:
    part = torch.randn(2, 4, 3, DEPTH, generator=torch.Generator().manual_seed(2))
    weight, table = torch.ones(DEPTH), torch.stack([torch.view_as_real(tables(n)[0])[:4] for n in (4, 7)])
    together = normed_and_rotated((part,), (weight,), (table,), 1e-6)
    for place in range(2):
        alone = normed_and_rotated((part[place : place + 1],), (weight,), (table[place],), 1e-6)
        assert torch.equal(together[place : place + 1], alone)


@torch.inference_mode()
def test_without_the_kernel_the_same_is_done_and_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine whose Triton does not work serves all the same."""
    configure(json=True, level="warning")
    tried: list[tuple[int, int]] = []

    def fail(head_dim: int, num_normed: int) -> None:
        tried.append((head_dim, num_normed))
        raise RuntimeError("no such card")

    monkeypatch.setattr("epe.parallel.rotating._try_kernel", fail)
    kernel_works.cache_clear()
    assert not kernel_works(128, 1536)
    assert not kernel_works(128, 1536)
    kernel_works.cache_clear()
    assert tried == [(128, 1536)]
    assert capsys.readouterr().err.count("RuntimeError: no such card") == 1


INTERPRETED = """
import torch
from epe.parallel.rotating import normed_and_rotated
from epe.parallel.rotating_kernel import norm_and_rotate

generator = torch.Generator().manual_seed(3)
joined = torch.randn(2, 5, 3 * 10 * 16, generator=generator)[..., 160:320].unflatten(-1, (10, 16))
table = torch.randn(5, 8, 2, generator=generator)
turned = joined.transpose(1, 2).contiguous().transpose(1, 2)
for given, num_normed in ((joined, 16), (turned, 16), (joined, 160), (turned, 160)):
    weight = torch.randn(num_normed, generator=generator)
    whole = torch.zeros(2, 9, 10, 16)
    norm_and_rotate(given, weight, table, eps=1e-6, into=whole[:, 3:8])
    expected = normed_and_rotated((given,), (weight,), (table,), 1e-6)
    torch.testing.assert_close(whole[:, 3:8], expected, rtol=0, atol=1e-5)
    assert not whole[:, :3].any() and not whole[:, 8:].any()
"""


def test_the_kernel_gives_the_same_and_writes_nowhere_else() -> None:
    pytest.importorskip("triton")
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path)),
    }
    command = [sys.executable, "-c", INTERPRETED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
