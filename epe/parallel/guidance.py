"""What a lane means for guidance: branches (with and without the prompt) as one batch, or each alone.

Which of the two is fixed for a stage, since a batch and its members alone differ in their last bits.
Each alone, the branches may run at once on two halves of the lane or one after the other on all of it:
with equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from epe.geometry import row_bounds
from epe.messages import Split
from epe.transport.exchange import Exchange

Branch = TypeVar("Branch", contravariant=True)


class Forward(Protocol[Branch]):
    """Predictions of some branches as one batch, on every rank of `exchange`."""

    def __call__(self, branches: Sequence[Branch], exchange: Exchange) -> list[torch.Tensor]: ...


def predict_together(
    forward: Forward[Branch], branches: Sequence[Branch], *, exchange: Exchange, split: Split
) -> list[torch.Tensor]:
    """All branches as one batch over the whole lane."""
    _check(split, exchange)
    if split.cfg != 1:
        raise ValueError(f"a stage that runs its branches as one batch cannot split them {split.cfg} ways")
    return forward(branches, exchange)


def predict_apart(
    forward: Forward[Branch], branches: Sequence[Branch], *, exchange: Exchange, split: Split
) -> list[torch.Tensor]:
    """Each branch alone: one after the other, or each on its share of the lane at once (`split.cfg`)."""
    _check(split, exchange)
    if split.cfg == 1:
        return [forward([branch], exchange)[0] for branch in branches]
    if split.cfg != len(branches):
        raise ValueError(f"{len(branches)} branches cannot run {split.cfg} at once")
    share = exchange.position // split.cp
    positions = tuple(range(share * split.cp, (share + 1) * split.cp))
    (prediction,) = forward([branches[share]], exchange.narrow(positions))
    return _trade(prediction, exchange=exchange, split=split)


def _check(split: Split, exchange: Exchange) -> None:
    if split.cfg * split.cp != exchange.width:
        raise ValueError(f"a lane of {exchange.width} ranks cannot work as {split.cfg} x {split.cp}")


def _trade(prediction: torch.Tensor, *, exchange: Exchange, split: Split) -> list[torch.Tensor]:
    """Every branch's prediction on every rank, in one exchange to which each rank gives an equal part."""
    flat = prediction.reshape(-1)
    bounds = row_bounds(flat.numel(), split.cp)
    start, end = bounds[exchange.position % split.cp]
    sizes = tuple(b - a for a, b in bounds) * split.cfg
    everything = exchange.gather(flat[start:end], sizes, dim=0)
    return [one.view(prediction.shape) for one in everything.view(split.cfg, -1)]
