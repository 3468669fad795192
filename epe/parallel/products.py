"""Matrix products on a GPU, with the bits that rows have among all rows.

Where rows are few, cuBLAS divides a product along its inner dimension and adds the parts up (split-K): another order of
the same sum, with other last bits. It chooses so by the number of rows, so a rank with some of them would draw another
picture than one with all. On an H200 that was the only cause of other bits that was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from epe.geometry import max_width, row_bounds


def keep_products_whole() -> None:
    """From here on this process divides no product of 16-bit numbers on a GPU. Of the two libraries of torch cuBLASLt
    alone can be told so."""
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)


def unlike_widths(model: nn.Module, *, row_counts: Iterable[int], widths: Iterable[int]) -> dict[int, str]:
    """The widths at which a linear layer of `model` gives the rows of some rank other bits than they have among all of
    them, for any of `row_counts`, each with the first such layer."""
    found: dict[int, str] = {}
    counts, wanted = set(row_counts), set(widths)
    for name, layer in _layers(model):
        for num_rows in counts:
            for width in wanted - found.keys():
                if width <= max_width(num_rows) and not _is_alike(layer, num_rows, width):
                    found[width] = name
    return found


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The linear layers, and the products that several of them are joined to, of those of one shape and type the first;
    in planes, those with a part of the inner features too."""
    seen = set()
    for name, module in model.named_modules():
        for layer in (module, getattr(module, "joined", None)):
            weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
            if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or isinstance(layer, nn.Embedding):
                continue
            shape = (weight.shape, weight.dtype, bias is None)
            if shape not in seen:
                seen.add(shape)
                yield name, layer


def _is_alike(layer: Any, num_rows: int, width: int) -> bool:
    weight, bias = layer.weight, layer.bias
    generator = torch.Generator(weight.device).manual_seed(0)
    rows = torch.randn(num_rows, weight.shape[1], generator=generator, device=weight.device).to(weight.dtype)
    with torch.inference_mode():
        whole = functional.linear(rows, weight, bias)
        return all(
            torch.equal(functional.linear(rows[start:end], weight, bias), whole[start:end])
            for start, end in row_bounds(num_rows, width)
        )
