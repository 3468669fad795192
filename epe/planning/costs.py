"""What a task costs in seconds: measured at start, fitted between the sizes measured, corrected in service.

A correction belongs to one exact key: a size that was never seen inherits none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from epe.geometry import max_width
from epe.messages import Stage
from epe.planning.correction import Correction, quantile
from epe.planning.fitting import REACH, Basis, CostKey, Fit, Lines
from epe.planning.memory import Memory
from epe.planning.moves import Migration, Moves, Pair

__all__ = ["Basis", "CostKey", "CostTable", "Fit", "Migration", "Workload"]


class Workload(Struct, frozen=True, kw_only=True):
    """The size of a request's tasks: picture tokens of one sequence, guidance branches, bytes of state, and those that
    the ranks of a lane keep between its steps, shared among them.

    `model` is empty where a world has one model; it parts equal sizes of several. Lanes of the widths in `barred` have
    not the memory for its steps, or would give other bits.
    """

    tokens: int
    conditions: int
    state_bytes: int = 0
    lent_bytes: int = 0
    model: str = ""
    barred: tuple[int, ...] = ()

    @property
    def max_width(self) -> int:
        """The widest lane on which every rank keeps enough rows for exact bits."""
        return max_width(self.tokens)

    def widths(self, allowed: Iterable[int], *, limit: int) -> tuple[int, ...]:
        """The allowed widths that its steps can have on `limit` ranks, ascending; if there is none, the narrowest
        that they can have at all."""
        possible = tuple(width for width in allowed if width <= self.max_width and width not in self.barred)
        return tuple(width for width in possible if width <= limit) or possible[:1] or (1,)


class CostTable:
    """Seconds by key. `record` collects warm-up samples, `settle` makes the table of their medians,
    `observe` corrects it in service.

    `seconds` is what a task usually takes, to put things in order; `safe_s` is what nine of ten take at most, to
    ask whether a deadline can be met.
    """

    # Used only before anything was measured: seconds for each token, condition and stage on one rank.
    PRIOR_S = 2e-5
    PRIOR_OVERHEAD_S = 1e-3
    # A service that is asked for ever new sizes keeps those that it met first.
    MAX_KEYS = 8192

    def __init__(
        self, measured: Mapping[CostKey, float] | None = None, *, migration: Migration | None = None
    ) -> None:
        self.moves = Moves(assumed=migration)
        self.memory = Memory()
        self._measured: dict[CostKey, float] = {}
        self._corrections: dict[CostKey, Correction] = {}
        # The corrected widths of a task, by its key at width 1.
        self._widths: defaultdict[CostKey, list[CostKey]] = defaultdict(list)
        self._spreads: dict[CostKey, float] = {}
        self._samples: defaultdict[CostKey, list[float]] = defaultdict(list)
        self._cold_samples: defaultdict[CostKey, list[float]] = defaultdict(list)
        self._lines = Lines()
        self._fits: dict[CostKey, Fit] = {}
        # Grows with every change, so that what was made of the table can be kept until then.
        self.edition = 0
        for key, seconds in (measured or {}).items():
            self.enter(key, seconds)

    @property
    def measured(self) -> Mapping[CostKey, float]:
        """The table without corrections; changed by `enter`, `settle` and `observe` alone."""
        return MappingProxyType(self._measured)

    def enter(self, key: CostKey, seconds: float, *, spread: float = 1.0) -> None:
        """Take what a task usually costs, and how many times that nine of ten take at most."""
        if key in self._measured or len(self._measured) < self.MAX_KEYS:
            self._measured[key] = seconds
            self._spreads[key] = spread
            self._lines.enter(key, seconds)
            self._fits.clear()
            self.edition += 1

    def record(self, key: CostKey, seconds: float, *, is_cold: bool = False) -> None:
        """Collect a warm-up sample. Of a key that has others those that are cold do not count."""
        if seconds > 0:
            (self._cold_samples if is_cold else self._samples)[key].append(seconds)

    def settle(self) -> None:
        """Turn the warm-up samples into the table."""
        for key, samples in (self._cold_samples | self._samples).items():
            usual = median(samples)
            self._forget(key)
            self.enter(key, usual, spread=quantile(samples, 0.9) / usual)
        self._samples.clear()
        self._cold_samples.clear()
        self.moves.settle()

    def observe(self, key: CostKey, seconds: float) -> None:
        """Correct the cost of exactly this key by a measurement made in service; the first one of a key that the
        warm-up did not measure becomes its entry (so that its other widths are fitted from it, not from a guess)."""
        if seconds > 0 and key not in self._measured:
            self.enter(key, seconds)
        elif seconds > 0:
            correction = self._corrections.get(key)
            if correction is None:
                correction = self._corrections[key] = Correction(spread=self._spreads[key])
                self._widths[replace(key, width=1)].append(key)
            correction.observe(seconds / self._measured[key])
            for other in self._widths[replace(key, width=1)]:
                if other != key:
                    self._corrections[other].fade()
            self.edition += 1

    def _forget(self, key: CostKey) -> None:
        """Its correction was that of another entry."""
        if self._corrections.pop(key, None) is not None:
            self._widths[replace(key, width=1)].remove(key)

    def seconds(self, key: CostKey) -> float:
        """The expected seconds of a task."""
        correction = self._corrections.get(key)
        return self.fit(key).seconds * (correction.factor if correction else 1.0)

    def usual_s(self, key: CostKey) -> float:
        """The median seconds of the last tasks: for whoever plans later, when what slows them down now has passed."""
        correction = self._corrections.get(key)
        return self.fit(key).seconds * (correction.median if correction else 1.0)

    def safe_s(self, key: CostKey) -> float:
        """The seconds that nine of ten such tasks take at most; where too few were seen, those that are expected."""
        correction = self._corrections.get(key)
        times = correction.p90 if correction else self._spreads.get(key, 1.0)
        return self.fit(key).seconds * times

    def fit(self, key: CostKey) -> Fit:
        """The seconds by the table alone: measured, else fitted, else the stated prior; and which of these."""
        fit = self._fits.get(key)
        if fit is None:
            if len(self._fits) >= self.MAX_KEYS:
                self._fits.clear()
            fit = self._fits[key] = self._fit(key)
        return fit

    def guesses(self, key: CostKey) -> bool:
        """Whether no task of this kind was measured yet, so that `seconds` may be far from the truth."""
        return not self._lines.knows(key.stage, key.model)

    def foresees(self, key: CostKey) -> bool:
        """Whether `seconds` rests on this very task or on sizes around it, on lanes of its width."""
        return self.fit(key).basis in (Basis.MEASURED, Basis.FITTED)

    def reach(self, stage: Stage) -> tuple[int, int]:
        """The fewest and most tokens for which no task of this stage is extrapolated; (0, 0) if none was measured."""
        tokens = [key.tokens for key in self._measured if key.stage is stage]
        return (math.ceil(min(tokens) / REACH), int(max(tokens) * REACH)) if tokens else (0, 0)

    def fits(self, key: CostKey, *, beside_bytes: int = 0) -> bool:
        """Whether a rank has the memory for a task and for so many bytes beside it, as far as is known."""
        return self.memory.fits(key, beside_bytes=beside_bytes)

    def migration_s(self, state_bytes: int, pair: Pair | None = None) -> float:
        """The expected seconds to bring a state to ranks that lack it; of a pair (source, receiver) if one is
        given."""
        return self.moves.seconds(state_bytes, pair)

    def _fit(self, key: CostKey) -> Fit:
        seconds = self._measured.get(key)
        if seconds is not None:
            return Fit(seconds=seconds, basis=Basis.MEASURED)
        return self._lines.fit(key) or Fit(seconds=self._prior_s(key), basis=Basis.GUESSED)

    def _prior_s(self, key: CostKey) -> float:
        work = key.tokens * key.conditions * key.batch * self.PRIOR_S
        return self.PRIOR_OVERHEAD_S + work / key.width
