"""Norm and rotation of queries or keys as one pass over memory.

What a compiler makes of them reads each row several times, since rotation takes pairs apart: 190 µs on an H200 for
the queries and keys of 4096 rows with 24 heads of 128, where memory needs 26.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch.nn import functional

from epe.telemetry.log import get_logger

log = get_logger("parallel")


def rotated(features: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """(batch, rows, heads, head dim), each pair of features turned by its angle, in float32. `table` has cosines and
    sines, and one head: (rows, 1, head dim / 2, 2), with or without a batch in front."""
    first, second = features.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = table.unbind(-1)
    turned = torch.stack((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
    return turned.flatten(-2).type_as(features)


def _normed_and_rotated(
    parts: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    tables: Sequence[torch.Tensor],
    eps: float,
) -> torch.Tensor:
    """The rows of several streams one after the other: (batch, rows, heads, head dim), contiguous. Of each stream there
    are its rows, the weight of the RMS norm over the features of a head, or of all heads, and a table of cosines and
    sines, (rows, head dim / 2, 2), with or without a batch in front."""
    depth, num_normed = parts[0].shape[-1], weights[0].numel()
    work = _by_kernel if parts[0].is_cuda and kernel_works(depth, num_normed) else _by_operations
    return work(parts, weights, tables, eps)


@cache
def kernel_works(head_dim: int, num_normed: int) -> bool:
    """Whether this process has the kernel for heads of so many features, which are a power of two, and norms over
    `num_normed`; tried at its first use. Without it the same is done in several passes, whose last bits are others,
    and the log says so."""
    try:
        _try_kernel(head_dim, num_normed)
    except Exception as error:  # Triton's have no common kind.
        log.warning(
            "kernel.left_out", kernel="norm and rotation", reason=f"{type(error).__name__}: {error}"[:200]
        )
        return False
    return True


def _try_kernel(head_dim: int, num_normed: int) -> None:
    rows = torch.ones(1, 2, num_normed // head_dim, head_dim, device="cuda", dtype=torch.bfloat16)
    table = torch.ones(2, head_dim // 2, 2, device="cuda")
    _by_kernel((rows,), (rows[0, 0].flatten(),), (table,), 1e-6)
    torch.cuda.synchronize()


def _by_kernel(
    parts: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], tables: Sequence[torch.Tensor], eps: float
) -> torch.Tensor:
    from epe.parallel.rotating_kernel import norm_and_rotate

    output = _like_all(parts, weights, tables, eps)
    places = output.split([part.shape[1] for part in parts], dim=1)
    for part, weight, table, place in zip(parts, weights, tables, places, strict=True):
        norm_and_rotate(part, weight, table, eps=eps, into=place)
    return output


def _by_operations(
    parts: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], tables: Sequence[torch.Tensor], eps: float
) -> torch.Tensor:
    normed = (_normed(part, weight, eps) for part, weight in zip(parts, weights, strict=True))
    turned = (rotated(part, table.unsqueeze(-3)) for part, table in zip(normed, tables, strict=True))
    return torch.cat(list(turned), dim=1)


def _normed(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Each head alone, or all of a row together."""
    if weight.numel() == rows.shape[-1]:
        return functional.rms_norm(rows, weight.shape, weight, eps)
    return functional.rms_norm(rows.flatten(-2), weight.shape, weight, eps).unflatten(-1, rows.shape[-2:])


def _like_all(
    parts: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    tables: Sequence[torch.Tensor],
    eps: float,
) -> torch.Tensor:
    batch, _, num_heads, depth = parts[0].shape
    return parts[0].new_empty((batch, sum(part.shape[1] for part in parts), num_heads, depth))


# Opaque to compilers, which would make their own of it.
normed_and_rotated = torch.library.custom_op("epe::normed_and_rotated", _normed_and_rotated, mutates_args=())
normed_and_rotated.register_fake(_like_all)
