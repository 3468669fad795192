"""Which steps MeanCache computes, chosen by what a profile says that each absence would do.

A step's error is the difference of what leads on and what would have been computed; in inner products of computed
velocities it costs a few numbers. It is weighed by the length of the step.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np

from epe.cache.products import products_at
from epe.cache.profile import Profile
from epe.cache.weights import weights
from epe.messages.caching import MeanCache, Reuse

MAX_ORDER = 6


@lru_cache(maxsize=64)
def mean_choice(
    profile: Profile, num_steps: int, always: frozenset[int], num_computed: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """MeanCache's computed steps, and the windows of all others by step: the cheapest way from the first step to the
    end over so many computed ones, where a gap costs the errors of its steps at the window that is best for it."""
    gaps = _gap_costs(profile, num_steps)
    forced = sorted(always)
    barred = {
        (a, b)
        for a in range(num_steps)
        for b in range(a + 1, num_steps + 1)
        if any(a < f < b for f in forced)
    }
    best: dict[tuple[int, int], tuple[float, int]] = {(0, 1): (0.0, -1)}
    for count in range(2, num_computed + 2):
        for end in range(count - 1, num_steps + 1):
            ways = [
                (best[a, count - 1][0] + gaps[a, end][0], a)
                for a in range(end)
                if (a, count - 1) in best and (a, end) not in barred
            ]
            if ways:
                best[end, count] = min(ways)
    return _way_back(best, gaps, num_steps, num_computed)


def _way_back(
    best: dict[tuple[int, int], tuple[float, int]],
    gaps: dict[tuple[int, int], tuple[float, int]],
    num_steps: int,
    num_computed: int,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    place, ends = num_steps, [num_steps]
    for count in range(num_computed + 1, 1, -1):
        place = best[place, count][1]
        ends.append(place)
    ends.reverse()
    orders = [1] * num_steps
    for first, end in pairwise(ends):
        orders[first + 1 : end] = [gaps[first, end][1]] * (end - first - 1)
    return tuple(ends[:-1]), tuple(orders)


@lru_cache(maxsize=16)
def _gap_costs(profile: Profile, num_steps: int) -> dict[tuple[int, int], tuple[float, int]]:
    """(error, best window) of each gap from a computed step to the next one, if all before it had been computed."""
    sigmas, products = products_at(profile, num_steps)
    costs: dict[tuple[int, int], tuple[float, int]] = {}
    for first in range(num_steps):
        for window in range(1, min(MAX_ORDER, first + 1) + 1):
            total = 0.0
            for end, cost in enumerate((0.0, *_step_costs(sigmas, products, first, window)), start=first + 1):
                total += cost
                costs[first, end] = min(costs.get((first, end), (float("inf"), 0)), (total, window))
    return costs


def _step_costs(sigmas: tuple[float, ...], products: np.ndarray, first: int, window: int) -> list[float]:
    """The error of each step after `first`, led on with this window."""
    num_steps = len(products)
    led = Reuse(strategy=MeanCache(), computed=tuple(range(first + 1)), orders=(window,) * num_steps)
    costs = []
    for step in range(first + 1, num_steps):
        row = np.zeros(num_steps)
        for source, weight in weights(led, sigmas, step).items():
            row[source] = weight
        row[step] -= 1.0
        costs.append(float(row @ products @ row) * (sigmas[step] - sigmas[step + 1]) ** 2)
    return costs
