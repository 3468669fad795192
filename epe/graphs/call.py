"""A call of a model, taken apart: its tensors, and all else, which decides what the call does."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten


@dataclass(frozen=True, slots=True)
class Tree:
    """Tensors and other values in nested tuples, lists and dictionaries."""

    leaves: list[Any]
    spec: TreeSpec

    @classmethod
    def of(cls, value: Any) -> Tree:
        return cls(*tree_flatten(value))

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    @property
    def key(self) -> Hashable:
        """Equal for trees that differ in the values of their tensors alone."""
        return self.spec, tuple(map(_key, self.leaves))

    def holding(self, tensors: Iterable[torch.Tensor]) -> Any:
        """The nested value with other tensors in the places of its own."""
        others = iter(tensors)
        leaves = [next(others) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


def call_key(*values: Any) -> Hashable:
    """Equal for values that differ in those of their tensors alone."""
    return Tree.of(values).key


def _key(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device
    return leaf
