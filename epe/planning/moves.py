"""What it costs to bring a state to ranks that lack it: by bytes and by pair of ranks."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import Annotated

from msgspec import Meta, Struct

from epe.planning.correction import Correction


class Migration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An assumption that holds for all pairs of ranks, until one of them was measured."""

    latency_s: Annotated[float, Meta(ge=0, le=1e9)] = 2e-3
    bytes_per_s: Annotated[float, Meta(ge=1)] = 1e9

    def seconds(self, state_bytes: int) -> float:
        return self.latency_s + state_bytes / self.bytes_per_s


Pair = tuple[int, int]


class Moves:
    """Seconds from a rank that holds a state (copy to host memory included) to one that lacks it.

    A pair that was not measured costs what is usual among those that were.
    """

    # Sizes of each pair; a service that is asked for ever new ones keeps those that it met first.
    MAX_SIZES = 64

    def __init__(self, *, assumed: Migration | None = None) -> None:
        self.assumed = assumed or Migration()
        self.measured: dict[Pair, dict[int, float]] = {}
        self._samples: dict[tuple[Pair, int], list[float]] = defaultdict(list)
        self._corrections: dict[tuple[Pair, int], Correction] = {}
        self._known: dict[tuple[Pair | None, int], float] = {}

    def enter(self, pair: Pair, state_bytes: int, seconds: float) -> None:
        """Take what is known of a pair (source, receiver)."""
        sizes = self.measured.setdefault(pair, {})
        if state_bytes in sizes or len(sizes) < self.MAX_SIZES:
            sizes[state_bytes] = seconds
            self._known.clear()

    def record(self, pair: Pair, state_bytes: int, seconds: float) -> None:
        """Collect a warm-up sample."""
        self._samples[pair, state_bytes].append(seconds)

    def settle(self) -> None:
        """Turn the warm-up samples into the table."""
        for (pair, state_bytes), samples in self._samples.items():
            self.enter(pair, state_bytes, median(samples))
        self._samples.clear()

    def observe(self, pair: Pair, state_bytes: int, seconds: float) -> None:
        """Correct by a move that was made in service."""
        tabled = self.measured.get(pair, {}).get(state_bytes)
        if tabled is None:
            self.enter(pair, state_bytes, seconds)
            return
        self._corrections.setdefault((pair, state_bytes), Correction()).observe(seconds / tabled)
        self._known.clear()

    def seconds(self, state_bytes: int, pair: Pair | None = None) -> float:
        """The expected seconds; without a pair, those that are usual."""
        known = self._known.get((pair, state_bytes))
        if known is None:
            known = self._known[pair, state_bytes] = self._seconds(state_bytes, pair)
        return known

    def corrected(self, pair: Pair, state_bytes: int) -> float:
        """A measured entry with its correction."""
        correction = self._corrections.get((pair, state_bytes))
        return self.measured[pair][state_bytes] * (correction.factor if correction else 1.0)

    def _seconds(self, state_bytes: int, pair: Pair | None) -> float:
        if pair in self.measured:
            points = sorted((known, self.corrected(pair, known)) for known in self.measured[pair])
            return _at(points, state_bytes, bytes_per_s=self.assumed.bytes_per_s)
        if self.measured:
            return median(self.seconds(state_bytes, known) for known in self.measured)
        return self.assumed.seconds(state_bytes)


def _at(points: list[tuple[int, float]], state_bytes: int, *, bytes_per_s: float) -> float:
    """On straight lines between the points. Less costs no less than the smallest point; more goes on as the last two
    points do, or from a single one at `bytes_per_s`."""
    for (b0, s0), (b1, s1) in pairwise(points):
        if b0 <= state_bytes <= b1:
            return s0 + (s1 - s0) * (state_bytes - b0) / (b1 - b0)
    if state_bytes <= points[0][0]:
        return points[0][1]
    last_bytes, last_s = points[-1]
    slope = 1 / bytes_per_s
    if len(points) > 1:
        slope = max(0.0, (last_s - points[-2][1]) / (last_bytes - points[-2][0]))
    return last_s + (state_bytes - last_bytes) * slope
