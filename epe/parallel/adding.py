"""What a layer gives, normed, gated and added to the rows that it came from, as one pass over memory; and in the same
pass the sum, normed and scaled for the next layer.

What a compiler makes of both took 68 µs on an H200 for 4224 rows of 3840 features, where memory needs 30.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import functional

from epe.parallel.trying import kernel_runs


def _add_gated(
    rows: torch.Tensor, given: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float
) -> torch.Tensor:
    """`rows` and what a layer gave for them, (batch, rows, features) each and contiguous: the latter after an RMS norm
    of this weight, times `gate`, (batch, 1, features)."""
    if not _by_kernel(rows):
        return rows + gate * functional.rms_norm(given, weight.shape, weight, eps)
    from epe.parallel.adding_kernel import add_gated

    total = rows.new_empty(rows.shape)
    add_gated(rows, given, weight, gate, eps=eps, into=total)
    return total


def _add_gated_and_scale(
    rows: torch.Tensor,
    given: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    next_weight: torch.Tensor,
    next_scale: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `add_gated`; and the sum after another RMS norm, times `next_scale`, (batch, 1, features)."""
    if not _by_kernel(rows):
        total = rows + gate * functional.rms_norm(given, weight.shape, weight, eps)
        return total, functional.rms_norm(total, next_weight.shape, next_weight, eps) * next_scale
    from epe.parallel.adding_kernel import add_gated

    total, scaled = rows.new_empty(rows.shape), rows.new_empty(rows.shape)
    add_gated(
        rows, given, weight, gate, eps=eps, into=total, scaled=(next_weight, next_scale), scaled_into=scaled
    )
    return total, scaled


def _by_kernel(rows: torch.Tensor) -> bool:
    return rows.is_cuda and _kernel_works(rows.shape[-1])


@cache
def _kernel_works(num_features: int) -> bool:
    """Whether this process has the kernel; tried at its first use."""

    def run() -> None:
        from epe.parallel.adding_kernel import add_gated

        rows = torch.ones(1, 2, num_features, device="cuda", dtype=torch.bfloat16)
        weight, gate, total, scaled = rows[0, 0], rows[:, :1], torch.empty_like(rows), torch.empty_like(rows)
        add_gated(rows, rows, weight, gate, eps=1e-6, into=total)
        add_gated(
            rows, rows, weight, gate, eps=1e-6, into=total, scaled=(weight, gate), scaled_into=scaled
        )
        torch.cuda.synchronize()

    return kernel_runs("gated sums", run)


def _like_rows(
    rows: torch.Tensor, given: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float
) -> torch.Tensor:
    return rows.new_empty(rows.shape)


def _both_like_rows(
    rows: torch.Tensor,
    given: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    next_weight: torch.Tensor,
    next_scale: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    return rows.new_empty(rows.shape), rows.new_empty(rows.shape)


# Opaque to compilers, which would make their own of it.
add_gated = torch.library.custom_op("epe::add_gated", _add_gated, mutates_args=())
add_gated.register_fake(_like_rows)
add_gated_and_scale = torch.library.custom_op(
    "epe::add_gated_and_scale", _add_gated_and_scale, mutates_args=()
)
add_gated_and_scale.register_fake(_both_like_rows)
