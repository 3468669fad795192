"""Linear layers of the same features as one product: few rows, or few outputs each, leave a GPU idle in several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class JoinedProduct:
    """What several layers make of the same features, computed at once. They keep their weights, which become parts of
    the one, so that nothing is there twice. It rounds otherwise. If lanes share its rows the layers know of it: who
    tries their products tries this one too."""

    def __init__(self, layers: Sequence[Any], *, shares_rows: bool = True) -> None:
        self._sizes = [len(layer.weight) for layer in layers]
        self.weight = _joined(layers, "weight")
        self.bias = None if layers[0].bias is None else _joined(layers, "bias")
        for layer in layers if shares_rows else ():
            layer.joined = self

    def __call__(self, features: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return functional.linear(features, self.weight, self.bias).split(self._sizes, dim=-1)


def _joined(layers: Sequence[Any], name: str) -> nn.Parameter:
    parts = [getattr(layer, name).detach() for layer in layers]
    # A parameter, since compilers leave the sizes of all other tensors open.
    whole = nn.Parameter(torch.cat(parts), requires_grad=False)
    for layer, part in zip(layers, whole.split([len(part) for part in parts]), strict=True):
        setattr(layer, name, nn.Parameter(part, requires_grad=False))
    return whole
