"""Activations in another form are the same functions."""

from __future__ import annotations

import torch
from diffusers.models.activations import GELU
from torch import nn
from torch.nn import functional

from epe.parallel.activations import LinearGelu, gelu_by_sigmoid, linear_gelu, use_fast_gelus

VALUES = torch.linspace(-12, 12, 4801)


def test_gelu_by_sigmoid_is_gelu_by_tanh() -> None:
    expected = functional.gelu(VALUES.double(), approximate="tanh").float()
    torch.testing.assert_close(gelu_by_sigmoid(VALUES), expected, rtol=2e-5, atol=1e-6)
    halves = VALUES.bfloat16()
    theirs = functional.gelu(halves, approximate="tanh")
    torch.testing.assert_close(gelu_by_sigmoid(halves), theirs, rtol=2**-7, atol=1e-5)


def test_a_product_and_its_activation_are_one() -> None:
    features, weight, bias = torch.randn(2, 5, 6), torch.randn(7, 6), torch.randn(7)
    expected = functional.gelu(functional.linear(features, weight, bias), approximate="tanh")
    torch.testing.assert_close(linear_gelu(features, weight, bias), expected)
    torch.library.opcheck(linear_gelu, (features, weight, bias))


def test_only_gelus_by_tanh_are_computed_so() -> None:
    modules = [nn.GELU(), nn.GELU(approximate="tanh"), GELU(4, 4), GELU(4, 4, approximate="tanh")]
    use_fast_gelus(nn.Sequential(*modules))
    assert [module.__dict__.get("forward") for module in modules] == [None, gelu_by_sigmoid, None, None]
    assert [type(module) for module in modules] == [nn.GELU, nn.GELU, GELU, LinearGelu]
