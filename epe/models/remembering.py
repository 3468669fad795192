"""Encoded prompts that are kept for requests with the same words: the bits of the first time, without its work."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Any

from epe.graphs.call import Tree


class Remembered:
    """Stands for the `encode_prompt` of a pipeline. What it gave is kept by all that it was asked (texts and options),
    up to `budget_bytes`; what was asked for least recently goes first.

    Texts in `never` are encoded each time: those of the warm-up, which would measure nothing. For one thread; tensors
    that it gives must not be changed in place.
    """

    def __init__(self, encode: Callable[..., Any], *, budget_bytes: int, never: Collection[str] = ()) -> None:
        self.num_bytes = 0
        self._encode = encode
        self._budget_bytes = budget_bytes
        self._never = frozenset(never)
        self._kept: OrderedDict[Hashable, Tree] = OrderedDict()

    def __call__(self, **asked: Any) -> Any:
        """Raises what encoding raises, and then keeps nothing."""
        # First: diffusers writes its templates into the lists that it is given.
        key, keeps = _key(asked), self._never.isdisjoint(_texts(asked))
        if key not in self._kept:
            given = self._encode(**asked)
            if keeps:
                self._keep(key, Tree.of(given))
            return given
        self._kept.move_to_end(key)
        kept = self._kept[key]
        return kept.holding(kept.tensors)

    def _keep(self, key: Hashable, given: Tree) -> None:
        self._kept[key] = given
        self.num_bytes += _bytes_of(given)
        while self.num_bytes > self._budget_bytes:
            self.num_bytes -= _bytes_of(self._kept.popitem(last=False)[1])


def _key(asked: dict[str, Any]) -> Hashable:
    return tuple(sorted((name, _hashable(value)) for name, value in asked.items()))


def _hashable(value: Any) -> Hashable:
    """Texts come alone or in lists."""
    return tuple(value) if isinstance(value, list) else value


def _texts(asked: dict[str, Any]) -> list[str]:
    values = (each for value in asked.values() for each in (value if isinstance(value, list) else [value]))
    return [each for each in values if isinstance(each, str)]


def _bytes_of(given: Tree) -> int:
    return sum(tensor.nbytes for tensor in given.tensors)
