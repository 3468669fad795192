"""Pyramid attention broadcast (Zhao et al., 2024): what attention gave at one step, used at the next ones too.

An attention module that is used again does nothing at all, its projections and the lane's exchange included. What is
kept are this rank's rows; so it lives within one lease, on one lane, and never leaves the rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from epe.families import AttentionKind

Kinds = frozenset[AttentionKind]
NOTHING: Kinds = frozenset()


class Broadcast:
    """Of one request, for the steps of one lease. A step has as many passes of the model as branches run one after the
    other on this rank."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Any] = {}
        self._kinds: dict[tuple[int, int], AttentionKind] = {}
        self._reused = self._keeps = NOTHING
        self._pass = 0

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for kept in self._kept.values() for tensor in _tensors(kept))

    def begin_step(self, *, reused: Kinds, keeps: Kinds) -> None:
        """Of the step that follows attention of the kinds `reused` is not computed where it is kept; what later steps
        use of it is of the kinds that it `keeps`."""
        self._reused, self._keeps, self._pass = reused, keeps, 0
        for key in [key for key, kind in self._kinds.items() if kind not in keeps | reused]:
            del self._kept[key], self._kinds[key]

    def end_pass(self) -> None:
        self._pass += 1

    def around(self, kind: AttentionKind, place: int, attend: Callable[[], Any]) -> Any:
        """What the attention module at `place` gives."""
        key = (self._pass, place)
        if kind in self._reused and key in self._kept:
            return self._kept[key]
        made = attend()
        if kind in self._keeps:
            self._kept[key], self._kinds[key] = made, kind
        return made


def _tensors(kept: Any) -> tuple[torch.Tensor, ...]:
    return (kept,) if isinstance(kept, torch.Tensor) else tuple(kept)
