"""The kernel behind `epe.parallel.rotating`; to be imported where there is Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Heads of a row that one program takes, if each is normed alone: their table is read once.
HEADS = 8
# Values of a warp.
PER_WARP = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _norm_and_rotate(  # type: ignore[no-untyped-def]
    given,
    weights,
    table,
    into,
    eps,
    num_heads,
    given_batch,
    given_row,
    table_batch,
    table_row,
    into_batch,
    into_row,
    HEADS: tl.constexpr,
    DEPTH: tl.constexpr,
    ALONE: tl.constexpr,
):
    row, batch = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    features = tl.arange(0, DEPTH)
    places = heads[:, None] * DEPTH + features[None, :]
    is_there = heads[:, None] < num_heads
    values = tl.load(given + batch * given_batch + row * given_row + places, mask=is_there, other=0.0)
    values = values.to(tl.float32)
    if ALONE:
        squares = tl.sum(values * values, axis=1)[:, None] / DEPTH
        scales = tl.load(weights + features)[None, :]
    else:
        squares = tl.sum(values * values) / (num_heads * DEPTH)
        scales = tl.load(weights + places, mask=is_there, other=0.0)
    values = values * tl.rsqrt(squares + eps) * scales.to(tl.float32)
    first, second = tl.split(tl.reshape(values, (HEADS, DEPTH // 2, 2)))
    angles = tl.load(table + batch * table_batch + row * table_row + features).to(tl.float32)
    cosine, sine = tl.split(tl.reshape(angles, (DEPTH // 2, 2)))
    cosine, sine = cosine[None, :], sine[None, :]
    turned = tl.join(first * cosine - second * sine, first * sine + second * cosine)
    turned = tl.reshape(turned, (HEADS, DEPTH)).to(into.dtype.element_ty)
    tl.store(into + batch * into_batch + row * into_row + places, turned, mask=is_there)


def norm_and_rotate(
    given: torch.Tensor, weight: torch.Tensor, table: torch.Tensor, *, eps: float, into: torch.Tensor
) -> None:
    """Of rows (batch, rows, heads, head dim) `into` rows whose heads lie one after the other. The head dim is a power
    of two. A weight for all heads norms them together, one for a head each alone."""
    batch, num_rows, num_heads, depth = given.shape
    alone = weight.numel() == depth
    heads = HEADS if alone else triton.next_power_of_2(num_heads)
    table, weight = table.contiguous(), weight.contiguous()
    if given.stride()[2:] != (depth, 1):
        given = given.contiguous()
    grid = (num_rows, triton.cdiv(num_heads, heads), batch)
    with torch.cuda.device_of(given):
        _norm_and_rotate[grid](
            given,
            weight,
            table,
            into,
            eps,
            num_heads,
            given.stride(0),
            given.stride(1),
            table.stride(0) if table.ndim == 4 else 0,
            table.stride(-3),
            into.stride(0),
            into.stride(1),
            HEADS=heads,
            DEPTH=depth,
            ALONE=alone,
            num_warps=4 if alone else max(4, heads * depth // PER_WARP),
        )
