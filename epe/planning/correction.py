"""How measured seconds correct one entry of a table: towards what is usual, and with a sense of what is not."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable


class Correction:
    """The ratio of measured to tabled seconds of one key: an EWMA that rejects outliers but can recover.

    `factor` is that EWMA. A sample far from the reference is set aside; when the next one agrees with it, the outlier
    was the truth and becomes the new reference (so a bad first sample poisons nothing). `median` and `p90` are those
    of the last accepted samples; of fewer than `ENOUGH`, `factor` and the `spread` that was given.

    It fades while it is not heard of: what was slow once might be fast now, and would not be tried again.

    What slows a machine down lasts longer than a task, so the last sample says most of the next one: on a busy
    machine a `WEIGHT` of 0.5 predicts better than a smaller one, and on a quiet one it matters little.
    """

    OUTLIER = 4.0
    AGREE = 1.5
    WEIGHT = 0.5
    FADES = 0.05
    ENOUGH = 10
    REMEMBERED = 32

    def __init__(self, *, spread: float = 1.0) -> None:
        self.factor = 1.0
        self.spread = spread
        self._last: deque[float] = deque(maxlen=self.REMEMBERED)
        self._p90 = 1.0
        self._aside: float | None = None

    @property
    def median(self) -> float:
        """The ratio in the middle of the samples that still count: steadier than `factor`, and slower."""
        return quantile(self._last, 0.5) if len(self._last) >= self.ENOUGH else self.factor

    @property
    def p90(self) -> float:
        """The ratio below which nine of ten samples are; never below `factor`."""
        if len(self._last) < self.ENOUGH:
            return self.factor * self.spread
        return max(self.factor, self._p90)

    def observe(self, ratio: float) -> None:
        """Take one sample of measured / tabled."""
        if _apart(ratio, self.factor) > self.OUTLIER:
            if self._aside is not None and _apart(ratio, self._aside) <= self.AGREE:
                self._last.clear()
                self._accept(math.sqrt(ratio * self._aside), weight=1.0)
            else:
                self._aside = ratio
            return
        self._accept(ratio, weight=self.WEIGHT if self._last else 1.0)

    def fade(self) -> None:
        """Other widths are used meanwhile: a little towards what was usual, or towards the table if little was seen."""
        usual = quantile(self._last, 0.5) if len(self._last) >= self.ENOUGH else 1.0
        self.factor += self.FADES * (usual - self.factor)

    def _accept(self, ratio: float, *, weight: float) -> None:
        self.factor += weight * (ratio - self.factor)
        self._last.append(ratio)
        self._p90 = quantile(self._last, 0.9)
        self._aside = None


def quantile(values: Iterable[float], share: float) -> float:
    """By linear interpolation between the sorted values, of which there is at least one."""
    order = sorted(values)
    place = share * (len(order) - 1)
    below = int(place)
    above = min(below + 1, len(order) - 1)
    return order[below] + (place - below) * (order[above] - order[below])


def _apart(a: float, b: float) -> float:
    """How many times two positive numbers are apart."""
    return max(a / b, b / a)
