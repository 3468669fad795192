"""Which steps FreeCache and MeanCache compute, chosen by what a profile says that each absence would do.

A step's error is the difference of what leads on and what would have been computed; in inner products of computed
velocities it costs a few numbers. It is weighed by the length of the step. The errors of two steps may add up or go
different ways: both sums are known, and the profile's `rho` says how they are mixed.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np

from epe.cache.products import products_at
from epe.cache.profile import Profile
from epe.cache.weights import weights
from epe.messages.caching import MeanCache, Reuse

PULLS = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_ORDER = 6
# (steps that are computed, FreeCache's coefficient, error).
Choice = tuple[tuple[int, ...], float, float]


class Errors:
    """Of one model at one number of steps. Errors are parts of the squared length of the way from noise to picture."""

    def __init__(self, profile: Profile, num_steps: int) -> None:
        self.sigmas, self.products = products_at(profile, num_steps)
        self.num_steps = num_steps
        self.rho = profile.rho
        self.lengths = -np.diff(self.sigmas)

    def of(self, rows: np.ndarray) -> float:
        """`rows` are, weighed by their steps' lengths, what is used less what would have been computed."""
        alone = float(np.einsum("ij,ij->", rows @ self.products, rows))
        together = rows.sum(axis=0)
        return (1 - self.rho) * alone + self.rho * float(together @ self.products @ together)

    def of_lines(self, computed: tuple[int, ...], pull: float) -> float:
        """That of FreeCache with these steps and coefficient."""
        rows = np.zeros((self.num_steps, self.num_steps))
        levels = np.asarray(self.sigmas)
        anchors = (None, *computed, self.num_steps)
        for before, last, end in zip(anchors, anchors[1:], anchors[2:], strict=False):
            assert last is not None
            steps = np.arange(last + 1, end or self.num_steps)
            rows[steps, last] = 1.0
            if before is not None and pull:
                far = pull * (levels[steps] - levels[last]) / (levels[last] - levels[before])
                rows[steps, last] += far
                rows[steps, before] = -far
            rows[steps, steps] -= 1.0
        return self.of(rows * self.lengths[:, None])


@lru_cache(maxsize=64)
def free_choices(profile: Profile, num_steps: int, always: frozenset[int]) -> tuple[Choice, ...]:
    """For each budget of steps from 1 on, the best choice that stays within it: `always` and others, of which one after
    the other is given up that is missed least. What fits a budget fits every larger one, so none is worse."""
    errors = Errors(profile, num_steps)
    best: dict[int, Choice] = {}
    for pull in PULLS:
        for computed, error in _given_up(errors, pull, always):
            if len(computed) not in best or error < best[len(computed)][2]:
                best[len(computed)] = (computed, pull, error)
    choices: list[Choice] = []
    for budget in range(1, num_steps + 1):
        found = best.get(budget, best[min(best)])
        choices.append(min(found, choices[-1], key=lambda each: each[2]) if choices else found)
    return tuple(choices)


def _given_up(errors: Errors, pull: float, always: frozenset[int]) -> list[tuple[tuple[int, ...], float]]:
    kept = tuple(range(errors.num_steps))
    found = [(kept, 0.0)]
    while len(kept) > len(always):
        fewer = [tuple(each for each in kept if each != step) for step in kept if step not in always]
        error, kept = min((errors.of_lines(each, pull), each) for each in fewer)
        found.append((kept, error))
    return found


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
    errors = Errors(profile, num_steps)
    costs: dict[tuple[int, int], tuple[float, int]] = {}
    for first in range(num_steps):
        for window in range(1, min(MAX_ORDER, first + 1) + 1):
            total = 0.0
            for end, cost in enumerate((0.0, *_step_costs(errors, first, window)), start=first + 1):
                total += cost
                costs[first, end] = min(costs.get((first, end), (float("inf"), 0)), (total, window))
    return costs


def _step_costs(errors: Errors, first: int, window: int) -> list[float]:
    """The error of each step after `first`, led on with this window."""
    led = Reuse(strategy=MeanCache(), computed=tuple(range(first + 1)), orders=(window,) * errors.num_steps)
    costs = []
    for step in range(first + 1, errors.num_steps):
        row = np.zeros(errors.num_steps)
        for source, weight in weights(led, errors.sigmas, step).items():
            row[source] = weight
        row[step] -= 1.0
        costs.append(float(row @ errors.products @ row) * errors.lengths[step] ** 2)
    return costs
