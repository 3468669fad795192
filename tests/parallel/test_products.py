"""Whether layers give the rows of one rank the bits that they have among all."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from epe.models.joining import JoinedProduct
from epe.parallel.products import unlike_widths


class Dividing(torch.Tensor):
    """A weight whose products with fewer than 100 rows are divided along the inner dimension, as cuBLAS has it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is not functional.linear or args[0].shape[0] >= 100:
                return func(*args, **(kwargs or {}))
            rows, weight, bias = args
            halves = zip(rows.tensor_split(2, dim=1), weight.tensor_split(2, dim=1), strict=True)
            product = sum(part @ half.T for part, half in halves)
            return product if bias is None else product + bias


def model_of(weight: torch.Tensor) -> nn.Module:
    model = nn.Sequential(nn.Linear(96, 96), nn.LayerNorm(96), nn.Linear(96, 32))
    del model[2].weight
    model[2].weight = weight
    return model


def test_layers_of_a_cpu_give_equal_bits_at_every_width():
    model = model_of(nn.Parameter(torch.randn(32, 96)))
    assert unlike_widths(model, row_counts=(323, 64), widths=(2, 3, 4, 8)) == {}


def test_a_width_at_which_a_library_divides_a_product_is_found_with_its_layer():
    model = model_of(torch.randn(32, 96).as_subclass(Dividing))
    assert unlike_widths(model, row_counts=(512,), widths=(2, 4, 6, 8)) == {6: "2", 8: "2"}


def test_a_product_that_layers_are_joined_to_is_tried_as_they_are() -> None:
    """Compiled blocks multiply so, and a library may divide the one and none of the others."""
    model = nn.Sequential(nn.Linear(96, 96), nn.Linear(96, 32))
    joined = JoinedProduct(list(model))
    assert unlike_widths(model, row_counts=(512,), widths=(2, 6)) == {}
    joined.weight = joined.weight.detach().as_subclass(Dividing)  # type: ignore[assignment]
    assert unlike_widths(model, row_counts=(512,), widths=(2, 6)) == {6: "0"}


def test_a_width_that_no_lane_could_have_is_not_tried():
    model = model_of(torch.randn(32, 96).as_subclass(Dividing))
    assert unlike_widths(model, row_counts=(200,), widths=(64,)) == {}
