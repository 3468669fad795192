"""Which kernels attention runs on, and when that is worth a warning."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend

from epe.parallel.kernels import attention_kernels, problem_with_kernels

CONFIGS = (
    {"num_attention_heads": 3, "attention_head_dim": 16},
    {"n_heads": 3, "dim": 48},
)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_cpu_names_one_of_torchs_kernels(config: dict[str, int]) -> None:
    kernels = attention_kernels(config, device=torch.device("cpu"), dtype=torch.float32)
    assert kernels in {name.lower() for name in SDPBackend.__members__}


def test_what_a_user_has_chosen_is_named_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epe.parallel.kernels.DIFFUSERS_ATTN_BACKEND", "sage")
    assert attention_kernels(CONFIGS[0], device=torch.device("cpu"), dtype=torch.float32) == "sage"


@pytest.mark.parametrize(
    ("kernels", "capability", "problem"),
    [
        ("cudnn_attention", (9, 0), None),
        ("flash_attention", (9, 0), "cuDNN"),
        ("flash_attention", (8, 0), None),
        ("math", (8, 0), "no fused attention"),
        ("math", None, None),
        ("sage", (9, 0), None),
    ],
)
def test_a_gpu_with_better_kernels_is_told_so(
    kernels: str, capability: tuple[int, int] | None, problem: str | None
) -> None:
    said = problem_with_kernels(kernels, capability=capability)
    assert said is None if problem is None else problem in str(said)
