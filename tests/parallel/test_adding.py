"""What a layer gave, normed, gated and added to its rows as one operation."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from diffusers.models.normalization import RMSNorm

from epe.parallel.adding import add_gated, add_gated_and_scale
from epe.parallel.trying import kernel_runs
from epe.telemetry.log import configure
from tests.world import ROOT

FEATURES, EPS = 48, 1e-5


@torch.inference_mode()
def test_sums_are_those_of_diffusers_and_each_request_has_its_own_gate() -> None:
    generator = torch.Generator().manual_seed(1)
    rows, given = torch.randn(2, 2, 5, FEATURES, generator=generator)
    gate, scale = torch.randn(2, 2, 1, FEATURES, generator=generator)
    norms = [RMSNorm(FEATURES, eps=EPS) for _ in range(2)]
    for norm in norms:
        norm.weight.copy_(torch.randn(FEATURES, generator=generator))
    expected = rows + gate * norms[0](given)
    weight, next_weight = (norm.weight for norm in norms)
    total, scaled = add_gated_and_scale(rows, given, weight, gate, next_weight, scale, EPS)
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(scaled, norms[1](expected) * scale, rtol=0, atol=1e-5)
    assert torch.equal(add_gated(rows, given, weight, gate, EPS), total)


def test_a_kernel_that_does_not_run_is_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    configure(json=True, level="warning")

    def fail() -> None:
        raise RuntimeError("no such card")

    assert not kernel_runs("gated sums", fail)
    assert kernel_runs("gated sums", lambda: None)
    said = capsys.readouterr().err
    assert said.count("kernel.left_out") == 1
    assert "gated sums" in said
    assert "RuntimeError: no such card" in said


INTERPRETED = """
import torch
from epe.parallel.adding import add_gated_and_scale
from epe.parallel.adding_kernel import add_gated

generator = torch.Generator().manual_seed(3)
whole = torch.randn(2, 2, 9, 48, generator=generator)
weight, next_weight = torch.randn(2, 48, generator=generator)
gate, scale = torch.randn(2, 2, 1, 48, generator=generator)
for rows, given in (whole[:, :, :5].contiguous(), whole[:, :, 2:7]):
    total, scaled, alone = (torch.zeros(3, 5, 48) for _ in range(3))
    add_gated(
        rows, given, weight, gate, eps=1e-5, into=total[:2], scaled=(next_weight, scale), scaled_into=scaled[:2]
    )
    add_gated(rows, given, weight, gate, eps=1e-5, into=alone[:2])
    expected = add_gated_and_scale(rows, given, weight, gate, next_weight, scale, 1e-5)
    torch.testing.assert_close(total[:2], expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(scaled[:2], expected[1], rtol=0, atol=1e-5)
    assert torch.equal(alone, total)
    assert not total[2].any() and not scaled[2].any()
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
