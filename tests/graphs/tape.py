"""Graphs on a CPU: operations are written down while they run, and done again on the same tensors.

As on a GPU nothing may ask for a value meanwhile, and what Python computed stays what it was when it was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# What waits for others: it is written down, and not run.
WAITS: list[Any] = []
ASKS_FOR_A_VALUE = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)


class TapeGraph(TorchDispatchMode):
    """One graph. Intermediate tensors live as long as it."""

    def __init__(self, device: TapeDevice) -> None:
        super().__init__()
        self._device = device
        self._notes: list[Callable[[], None]] = []
        self._is_open = False

    def begin(self) -> None:
        if self._device.fails_with is not None and self._device.num_begun >= self._device.fails_after:
            error, self._device.fails_with = self._device.fails_with, None
            raise error
        self._device.num_begun += 1
        self._is_open = True
        self.__enter__()

    def end(self) -> None:
        if not self._is_open:
            raise RuntimeError("a graph ends that has not begun")
        self._is_open = False
        self.__exit__(None, None, None)

    def replay(self) -> None:
        for note in self._notes:
            note()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ASKS_FOR_A_VALUE:
            raise RuntimeError(f"{func} waits for the device, which a graph cannot")
        kwargs = kwargs or {}
        if func in WAITS:
            self._notes.append(lambda: func(*args, **kwargs))
            return None
        outputs = func(*args, **kwargs)
        memory = {
            leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)
        }
        fresh = [
            (place, leaf)
            for place, leaf in enumerate(tree_leaves(outputs))
            if _is_tensor(leaf) and leaf.untyped_storage().data_ptr() not in memory
        ]
        if fresh or func._schema.is_mutable:
            self._notes.append(lambda: _redo(func, args, kwargs, fresh))
        return outputs


class TapeDevice:
    """Makes tapes. `fails_with` is raised by the next one that begins after `fails_after` others; each counts as
    `pass_bytes`."""

    def __init__(self, *, pass_bytes: int = 1) -> None:
        self.num_begun = 0
        self.fails_with: Exception | None = None
        self.fails_after = 0
        self._pass_bytes = pass_bytes

    def new_pool(self) -> object:
        return object()

    def graph(self, pool: object) -> TapeGraph:
        return TapeGraph(self)

    @contextmanager
    def aside(self) -> Iterator[None]:
        yield

    def without_owning(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def used_bytes(self) -> int:
        return self.num_begun * self._pass_bytes

    def let_go(self) -> None:
        pass


def _redo(func: Any, args: Any, kwargs: Any, fresh: list[tuple[int, torch.Tensor]]) -> None:
    leaves = tree_leaves(func(*args, **kwargs))
    for place, kept in fresh:
        kept.copy_(leaves[place])


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
