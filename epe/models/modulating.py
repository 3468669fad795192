"""What the blocks of a model make of a step's noise level alone: computed once a step for all guidance branches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

# The name by which a pass hands it to its blocks, among the options of attention.
MODULATIONS = "modulations"
_OPTIONS = "joint_attention_kwargs"


class Modulation(nn.Sequential):
    """Diffusers' SiLU and linear layer of a block, which let what was computed before them through."""

    place: int

    def forward(self, level: torch.Tensor) -> torch.Tensor:
        """Of an embedded noise level, (requests, width), or out of a block's modulations."""
        if level.ndim == 3:
            return level[self.place]
        modulation: torch.Tensor = super().forward(level)
        return modulation

    def of_activated(self, level: torch.Tensor) -> torch.Tensor:
        """Of an embedded noise level after its SiLU, which is the same for all."""
        modulation: torch.Tensor = self[1](level)
        return modulation


class Modulations:
    """Those of the `blocks` of a model, which have them at `names`. Without them a pass is as it was."""

    def __init__(self, blocks: Sequence[nn.Module], names: Sequence[str]) -> None:
        self._silu = nn.SiLU()
        self._layers: list[list[Modulation]] = []
        for number, block in enumerate(blocks):
            layers = [_let_through(getattr(block, name), place) for place, name in enumerate(names)]
            self._layers.append(layers)
            block.register_forward_pre_hook(partial(_given, number=number), with_kwargs=True)

    def of(self, level: torch.Tensor) -> torch.Tensor:
        """(blocks, names, requests, features) of an embedded noise level, (requests, width)."""
        activated = self._silu(level)
        return torch.stack(
            [torch.stack([layer.of_activated(activated) for layer in layers]) for layers in self._layers]
        )


def _let_through(layers: Any, place: int) -> Modulation:
    layers.__class__ = Modulation
    layers.place = place
    modulation: Modulation = layers
    return modulation


def _given(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, number: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A block gets its own modulations in place of the noise level."""
    options = dict(kwargs.get(_OPTIONS) or {})
    modulations = options.pop(MODULATIONS, None)
    if modulations is None:
        return args, kwargs
    return args, {**kwargs, _OPTIONS: options or None, "temb": modulations[number]}
