"""Activations in the form that costs a GPU least."""

from __future__ import annotations

import math

import torch
from diffusers.models.activations import GELU
from torch import nn

# tanh(u) is 2 sigmoid(2u) - 1, so GELU by tanh (Hendrycks and Gimpel, 2016), x (1 + tanh(u)) / 2, is x sigmoid(2u).
_TWICE = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def gelu_by_sigmoid(features: torch.Tensor) -> torch.Tensor:
    """The same as GELU by tanh but for rounding. In kernels that compilers make, the tanh alone takes longer than the
    memory."""
    wide = features.float()
    return (wide * torch.sigmoid(_TWICE * (wide + _CUBIC * wide**3))).type_as(features)


def use_sigmoid(model: nn.Module) -> None:
    """Let all GELUs by tanh of a model be computed so."""
    for module in model.modules():
        if isinstance(module, GELU) and module.approximate == "tanh":
            module.gelu = gelu_by_sigmoid
        elif isinstance(module, nn.GELU) and module.approximate == "tanh":
            module.forward = gelu_by_sigmoid
