"""The most bytes that the tensors which a thread makes hold at once."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts memory from the operation that makes it until no tensor of this thread sees it any more. What an operation
    takes for itself while it runs is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._num_views: Counter[int] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(each) for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor)}
        made = operation(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor):
                self._enter(tensor, is_new=_key(tensor) not in given)
        return made

    def _enter(self, tensor: torch.Tensor, *, is_new: bool) -> None:
        key = _key(tensor)
        if not is_new and key not in self._num_views:
            return  # A view of what was there before.
        if key not in self._num_views:
            self.now += tensor.untyped_storage().nbytes()
            self.peak = max(self.peak, self.now)
        self._num_views[key] += 1
        weakref.finalize(tensor, self._leave, key, tensor.untyped_storage().nbytes()).atexit = False

    def _leave(self, key: int, num_bytes: int) -> None:
        self._num_views[key] -= 1
        if self._num_views[key] == 0:
            del self._num_views[key]
            self.now -= num_bytes


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
