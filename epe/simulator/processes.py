"""When requests come: gaps between arrivals with a mean of about 1, to be stretched to a load."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from random import Random

Gaps = Callable[[Random, int], list[float]]

# On/off: a fifth of the time at 3.4 times the mean rate, the rest at 0.4 times, so that the mean is 1.
DUTY = 0.2
ON_RATE, OFF_RATE = 3.4, 0.4
CYCLE = 100.0

# The generator of GenTD26's evenings (Alibaba cluster-trace-v2026-GenAI, 2024-11-15 to 2024-12-08; ten windows of
# 1,000 requests, medians): 3.2 requests a minute, index of dispersion 1.7 a minute and 8 in ten minutes, correlation
# of neighbouring minutes 0.55. A Poisson process whose log-rate wanders (Ornstein-Uhlenbeck) has these with:
EVENING_RATE_VARIANCE = 0.4
EVENING_MEMORY = 50.0


def poisson(source: Random, num: int) -> list[float]:
    """Independent requests of many users."""
    return [source.expovariate(1.0) for _ in range(num)]


def gamma(variation: float) -> Gaps:
    """Gaps with the given coefficient of variation: requests in clumps."""
    shape = 1 / variation**2

    def gaps(source: Random, num: int) -> list[float]:
        return [source.gammavariate(shape, 1 / shape) for _ in range(num)]

    return gaps


def on_off(source: Random, num: int) -> list[float]:
    """Busy and quiet phases of exponential length, about 100 requests a cycle."""
    on = source.random() < DUTY
    left = _phase(source, on=on)
    gaps = []
    for _ in range(num):
        gap, work = 0.0, source.expovariate(1.0)
        while work > left * _rate(on=on):
            gap, work = gap + left, work - left * _rate(on=on)
            on = not on
            left = _phase(source, on=on)
        step = work / _rate(on=on)
        left -= step
        gaps.append(gap + step)
    return gaps


def evening(source: Random, num: int) -> list[float]:
    """As on GenTD26's evenings: Poisson in the small, a rate that wanders in the large."""
    deviation = math.sqrt(math.log(1 + EVENING_RATE_VARIANCE))
    level = source.gauss(0.0, deviation)
    gaps = []
    for _ in range(num):
        gap = source.expovariate(1.0) / math.exp(level - deviation**2 / 2)
        kept = math.exp(-gap / EVENING_MEMORY)
        level = level * kept + source.gauss(0.0, deviation * math.sqrt(1 - kept**2))
        gaps.append(gap)
    return gaps


def times(gaps: list[float]) -> list[float]:
    """Arrival times; the last one is the length of the whole."""
    return list(accumulate(gaps))


def _rate(*, on: bool) -> float:
    return ON_RATE if on else OFF_RATE


def _phase(source: Random, *, on: bool) -> float:
    return source.expovariate(1 / (CYCLE * (DUTY if on else 1 - DUTY)))
