"""Pyramid attention broadcast (Zhao et al., 2024): what attention gave at one step, used at the next ones too.

An attention module that is used again does nothing at all, its projections and the lane's exchange included. What is
kept are this rank's rows; so it lives within one lease, on one lane, and never leaves the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any
from weakref import ReferenceType, WeakValueDictionary, ref

import torch

from epe.families import AttentionKind

Kinds = frozenset[AttentionKind]
NOTHING: Kinds = frozenset()


class PassMemory:
    """What the attention modules gave in one pass of a step. It stays in its place, where graphs find it: a later step
    writes over it."""

    def __init__(self, owner: Broadcast) -> None:
        self._owner: ReferenceType[Broadcast] | None = ref(owner)
        self._given: dict[int, Any] = {}

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for given in self._given.values() for tensor in _tensors(given))

    def serves(self, other: Broadcast) -> bool:
        """Whether it does from now on: nobody else has it, who is still there."""
        if self._owner is not None and self._owner() is not None:
            return False
        self._owner = ref(other)
        return True

    def leave(self) -> None:
        """Let others have it."""
        self._owner = None

    def given(self, place: int) -> Any:
        return self._given[place]

    def keep(self, place: int, made: Any) -> None:
        """The first that is made stays itself, others go to its place."""
        if place not in self._given:
            self._given[place] = made
            return
        for mine, tensor in zip(_tensors(self._given[place]), _tensors(made), strict=True):
            mine.copy_(tensor)


class Memories:
    """Of one model on one rank: what requests use one after the other, by the shape of their passes. Each lives as long
    as a request or a graph holds it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, PassMemory] = WeakValueDictionary()

    def find(self, shape: Hashable, owner: Broadcast) -> PassMemory:
        """One that nobody else uses now."""
        known = self._known.get(shape)
        if known is None or not known.serves(owner):
            known = self._known[shape] = PassMemory(owner)
        return known


class Broadcast:
    """Of one request, for the steps of one lease. A step has as many passes of the model as branches run one after the
    other on this rank."""

    def __init__(self) -> None:
        self._memories: list[PassMemory] = []
        self._num_begun = 0
        self._reused = self._keeps = NOTHING

    @property
    def nbytes(self) -> int:
        return sum(memory.nbytes for memory in self._memories)

    def begin_step(self, *, reused: Kinds, keeps: Kinds) -> None:
        """Of the step that follows attention of the kinds `reused` is not computed where it is kept; what later steps
        use of it is of the kinds that it `keeps`."""
        self._reused, self._keeps, self._num_begun = reused & self._keeps, keeps, 0
        if not reused | keeps:
            while self._memories:
                self._memories.pop().leave()

    def begin_pass(self, find: Callable[[int], PassMemory]) -> BroadcastPass:
        """The pass that follows; `find` is asked once for the memory of each by its number."""
        number, self._num_begun = self._num_begun, self._num_begun + 1
        if number == len(self._memories):
            self._memories.append(find(number))
        return BroadcastPass(number, self._memories[number], reused=self._reused, keeps=self._keeps)


class BroadcastPass:
    """One pass of the model, by its `number` in the step, with attention of the kinds `reused` from `memory`, and those
    that it `keeps` to it."""

    def __init__(self, number: int, memory: PassMemory, *, reused: Kinds, keeps: Kinds) -> None:
        self.variant = number, reused, keeps
        self.memory, self._reused, self._keeps = memory, reused, keeps

    def around(self, kind: AttentionKind, place: int, attend: Callable[[], Any]) -> Any:
        """What the attention module at `place` gives."""
        if kind in self._reused:
            return self.memory.given(place)
        made = attend()
        if kind in self._keeps:
            self.memory.keep(place, made)
        return made


def _tensors(given: Any) -> tuple[torch.Tensor, ...]:
    return (given,) if isinstance(given, torch.Tensor) else tuple(given)
