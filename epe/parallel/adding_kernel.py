"""The kernel behind `epe.parallel.adding`; to be imported where there is Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Of the program that has a row. With more it waits for itself, with fewer a row does not fit into its registers.
NUM_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _add_gated(  # type: ignore[no-untyped-def]
    rows,
    given,
    weight,
    gate,
    next_weight,
    next_scale,
    into,
    scaled_into,
    eps,
    num_features,
    batch_size,
    gate_batch,
    scale_batch,
    FEATURES: tl.constexpr,
    HAS_NEXT: tl.constexpr,
):
    row, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    features = tl.arange(0, FEATURES)
    is_there = features < num_features
    places = batch * batch_size + row * num_features + features
    before = tl.load(rows + places, mask=is_there, other=0.0).to(tl.float32)
    values = tl.load(given + places, mask=is_there, other=0.0).to(tl.float32)
    gates = tl.load(gate + batch * gate_batch + features, mask=is_there, other=0.0).to(tl.float32)
    weights = tl.load(weight + features, mask=is_there, other=0.0).to(tl.float32)
    squares = tl.sum(values * values) / num_features
    total = before + gates * (values * tl.rsqrt(squares + eps) * weights)
    tl.store(into + places, total.to(into.dtype.element_ty), mask=is_there)
    if HAS_NEXT:
        scales = tl.load(next_scale + batch * scale_batch + features, mask=is_there, other=0.0).to(tl.float32)
        weights = tl.load(next_weight + features, mask=is_there, other=0.0).to(tl.float32)
        squares = tl.sum(total * total) / num_features
        scaled = total * tl.rsqrt(squares + eps) * weights * scales
        tl.store(scaled_into + places, scaled.to(into.dtype.element_ty), mask=is_there)


def add_gated(
    rows: torch.Tensor,
    given: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    *,
    eps: float,
    into: torch.Tensor,
    scaled: tuple[torch.Tensor, torch.Tensor] | None = None,
    scaled_into: torch.Tensor | None = None,
) -> None:
    """`into` and `scaled_into`, which are contiguous as rows and what a layer gave for them are made here, get what
    `epe.parallel.adding` says, the latter by a weight and a scale."""
    batch_size, num_rows, num_features = rows.shape
    rows, given = rows.contiguous(), given.contiguous()
    gate, weight = gate.contiguous(), weight.contiguous()
    next_weight, next_scale = (weight, gate) if scaled is None else (each.contiguous() for each in scaled)
    with torch.cuda.device_of(rows):
        _add_gated[(num_rows, batch_size)](
            rows,
            given,
            weight,
            gate,
            next_weight,
            next_scale,
            into,
            into if scaled_into is None else scaled_into,
            eps,
            num_features,
            num_rows * num_features,
            gate.stride(0),
            next_scale.stride(0),
            FEATURES=triton.next_power_of_2(num_features),
            HAS_NEXT=scaled is not None,
            num_warps=NUM_WARPS,
        )
