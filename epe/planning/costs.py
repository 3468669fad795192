"""What a task costs in seconds: measured at start, fitted between the sizes measured, corrected in service.

A correction belongs to one exact key: a size that was never seen inherits none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import median
from typing import Annotated

from msgspec import Meta, Struct

from epe.geometry import max_width
from epe.messages import Stage


class Workload(Struct, frozen=True, kw_only=True):
    """The size of a request's tasks: picture tokens of one sequence, guidance branches, bytes of state.

    `model` is empty where a world has one model; it parts equal sizes of several.
    """

    tokens: int
    conditions: int
    state_bytes: int = 0
    model: str = ""

    @property
    def max_width(self) -> int:
        """The widest lane on which every rank keeps enough rows for exact bits."""
        return max_width(self.tokens)


class CostKey(Struct, frozen=True, kw_only=True):
    """One kind of task, exactly."""

    stage: Stage
    tokens: int
    width: int = 1
    batch: int = 1
    conditions: int = 1
    model: str = ""


class Migration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it costs to bring a state to ranks that lack it, all at the same time."""

    latency_s: Annotated[float, Meta(ge=0)] = 2e-3
    bytes_per_s: Annotated[float, Meta(gt=0)] = 1e9

    def seconds(self, state_bytes: int) -> float:
        return self.latency_s + state_bytes / self.bytes_per_s


class Correction:
    """The ratio of measured to tabled seconds of one key: an EWMA that rejects outliers but can recover.

    A sample far from the reference is set aside; when the next one agrees with it, the outlier was
    the truth and becomes the new reference (so a bad first sample poisons nothing).
    """

    OUTLIER = 4.0
    AGREE = 1.5
    WEIGHT = 0.25

    def __init__(self) -> None:
        self.factor = 1.0
        self.num_samples = 0
        self._aside: float | None = None

    def observe(self, ratio: float) -> None:
        """Take one sample of measured / tabled."""
        if _apart(ratio, self.factor) > self.OUTLIER:
            if self._aside is not None and _apart(ratio, self._aside) <= self.AGREE:
                self._accept(math.sqrt(ratio * self._aside), weight=1.0)
            else:
                self._aside = ratio
            return
        self._accept(ratio, weight=self.WEIGHT if self.num_samples else 1.0)

    def _accept(self, ratio: float, *, weight: float) -> None:
        self.factor += weight * (ratio - self.factor)
        self.num_samples += 1
        self._aside = None


class CostTable:
    """Seconds by key. `record` collects warm-up samples, `settle` makes the table of their medians,
    `observe` corrects it in service."""

    # Used only before anything was measured: seconds for each token, condition and stage on one rank.
    PRIOR_S = 2e-5
    PRIOR_OVERHEAD_S = 1e-3

    def __init__(
        self, measured: dict[CostKey, float] | None = None, *, migration: Migration | None = None
    ) -> None:
        self.measured: dict[CostKey, float] = dict(measured or {})
        self.migration = migration or Migration()
        self.corrections: dict[CostKey, Correction] = {}
        self._samples: dict[CostKey, list[float]] = defaultdict(list)

    def record(self, key: CostKey, seconds: float) -> None:
        """Collect a warm-up sample."""
        self._samples[key].append(seconds)

    def settle(self) -> None:
        """Turn the warm-up samples into the table."""
        self.measured |= {key: median(samples) for key, samples in self._samples.items()}
        self._samples.clear()

    def observe(self, key: CostKey, seconds: float) -> None:
        """Correct the cost of exactly this key by a measurement made in service; the first one of a key that the
        warm-up did not measure becomes its entry (so that its other widths are fitted from it, not from a guess)."""
        if seconds > 0 and key not in self.measured:
            self.measured[key] = seconds
        elif seconds > 0:
            self.corrections.setdefault(key, Correction()).observe(seconds / self.tabled(key))

    def seconds(self, key: CostKey) -> float:
        """The expected seconds of a task."""
        correction = self.corrections.get(key)
        return self.tabled(key) * (correction.factor if correction else 1.0)

    def tabled(self, key: CostKey) -> float:
        """The seconds by the table alone: measured, else fitted, else the stated prior."""
        return self.measured.get(key) or self._fitted(key) or self._prior(key)

    def guesses(self, key: CostKey) -> bool:
        """Whether no task of this kind was measured yet, so that `seconds` may be far from the truth."""
        return not any((k.stage, k.model) == (key.stage, key.model) for k in self.measured)

    def migration_s(self, state_bytes: int) -> float:
        """The expected seconds to bring a state to ranks that lack it."""
        return self.migration.seconds(state_bytes)

    def _fitted(self, key: CostKey) -> float | None:
        """From the nearest width and conditions that were measured, by tokens on a log-log line."""
        alike = [k for k in self.measured if (k.stage, k.model) == (key.stage, key.model)]
        if not alike:
            return None
        near = min(alike, key=lambda k: (abs(k.width - key.width), abs(k.conditions - key.conditions)))
        points = sorted(
            (k.tokens, seconds)
            for k, seconds in self.measured.items()
            if (k.stage, k.model, k.width, k.conditions)
            == (near.stage, near.model, near.width, near.conditions)
        )
        scale = (near.width / key.width) * (key.conditions / near.conditions) * key.batch
        return _on_line(points, key.tokens) * scale

    def _prior(self, key: CostKey) -> float:
        work = key.tokens * key.conditions * key.batch * self.PRIOR_S
        return self.PRIOR_OVERHEAD_S + work / key.width


def _apart(a: float, b: float) -> float:
    """How many times two positive numbers are apart."""
    return max(a / b, b / a)


# Attention grows with the square of the tokens; nothing here grows faster, or costs less when it is more.
_STEEPEST = 2.0


def _on_line(points: list[tuple[int, float]], tokens: int) -> float:
    """Seconds at `tokens`: a line through the two nearest points in log-log; proportional from a single one.

    Beyond the points the line is no steeper than the work can be: two sizes that are close to each other say
    little about one that is far from both.
    """
    if len(points) == 1:
        return points[0][1] * tokens / points[0][0]
    above = next((i for i, (t, _) in enumerate(points) if t >= tokens), len(points) - 1)
    (t0, s0), (t1, s1) = points[max(above, 1) - 1 : max(above, 1) + 1]
    slope = math.log(s1 / s0) / math.log(t1 / t0)
    if t0 <= tokens <= t1:
        return float(s0 * (tokens / t0) ** slope)
    nearest_t, nearest_s = (t0, s0) if tokens < t0 else (t1, s1)
    return float(nearest_s * (tokens / nearest_t) ** min(max(slope, 0.0), _STEEPEST))
