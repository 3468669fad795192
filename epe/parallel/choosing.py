"""Which teams a lane works in, where the stage leaves it open: those with which its attention takes less time.

All give the same bits, so a lane may try them while it works, and another lane may choose otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from statistics import median
from weakref import WeakKeyDictionary

import torch

from epe.transport.exchange import Exchange

# Of each size of teams; the first does not count, since kernels and connections may be new then.
SAMPLES = 4

# Attention of this rank's rows in teams of so many ranks.
Work = Callable[[int], torch.Tensor]
Clock = Callable[[torch.device], float]


def device_time_s(device: torch.device) -> float:
    """Seconds on the clock once `device` has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Chooser:
    """Chooses the size of teams for each lane and shape of attention: the first calls take the sizes in turn, and at
    the end of a pass the ranks of the lane tell each other what they measured, so that all choose alike.

    What a lane has found out lives as long as its exchange, whose ranks have all been in the same passes.
    """

    def __init__(self, *, clock: Clock = device_time_s) -> None:
        self._clock = clock
        self._trials: WeakKeyDictionary[Exchange, dict[Hashable, _Trial]] = WeakKeyDictionary()

    def attend(
        self,
        work: Work,
        *,
        sizes: tuple[int, ...],
        exchange: Exchange,
        shape: Hashable,
        device: torch.device,
    ) -> torch.Tensor:
        """The attention of one layer. `shape` says what its time depends on, and `sizes` what may be chosen: both in
        numbers that all ranks have alike."""
        if len(sizes) == 1:
            return work(sizes[0])
        trials = self._trials.setdefault(exchange, {})
        trial = trials.setdefault(shape, _Trial(sizes, device, self._clock))
        return trial.attend(work)

    def end_pass(self, exchange: Exchange) -> None:
        """Settle what enough was measured of; every rank of the lane calls it at the end of each pass."""
        for trial in self._trials.get(exchange, {}).values():
            if trial.is_ripe:
                trial.settle(exchange)


class _Trial:
    """One shape on one lane, until it is settled and after."""

    def __init__(self, sizes: tuple[int, ...], device: torch.device, clock: Clock) -> None:
        self._sizes = sizes
        self._device = device
        self._clock = clock
        self._seconds: dict[int, list[float]] = {size: [] for size in sizes}
        self._chosen: int | None = None

    @property
    def is_ripe(self) -> bool:
        return self._chosen is None and all(len(seconds) >= SAMPLES for seconds in self._seconds.values())

    def attend(self, work: Work) -> torch.Tensor:
        if self._chosen is not None:
            return work(self._chosen)
        size = min(self._sizes, key=lambda each: len(self._seconds[each]))
        begin_s = self._clock(self._device)
        attended = work(size)
        self._seconds[size].append(self._clock(self._device) - begin_s)
        return attended

    def settle(self, exchange: Exchange) -> None:
        """Choose what took the ranks together less time."""
        usual = [median(seconds[1:]) for seconds in self._seconds.values()]
        own = torch.tensor(usual, dtype=torch.float64, device=self._device)
        everybody = exchange.gather(own, (len(usual),) * exchange.width, dim=0)
        self._chosen = self._sizes[int(everybody.view(exchange.width, -1).sum(dim=0).argmin())]
