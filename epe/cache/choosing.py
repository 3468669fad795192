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

    def of_lines(self, computed: tuple[int, ...], pull: float) -> float:
        """That of FreeCache with these steps and coefficient."""
        gaps = _LineGaps(self, pull)
        return float(self.of_sums(*gaps.total(computed)))

    def of_sums(self, alone: np.ndarray | float, together: np.ndarray) -> np.ndarray:
        """Of sums over rows: of their squared lengths, and (last dim) of themselves."""
        squared = np.einsum("...i,ij,...j->...", together, self.products, together)
        return np.asarray((1 - self.rho) * alone + self.rho * squared)


class _LineGaps:
    """What the steps between two computed ones give to the error of FreeCache with one coefficient: the sum of the
    squared lengths of their errors, and the sum of their errors themselves. Of one plan and the next nearly all are the
    same, so they are kept."""

    def __init__(self, errors: Errors, pull: float) -> None:
        self._errors = errors
        self._pull = pull
        self._levels = np.asarray(errors.sigmas)
        self._known: dict[tuple[int | None, int, int], tuple[float, np.ndarray]] = {}

    def total(self, computed: tuple[int, ...]) -> tuple[float, np.ndarray]:
        """Of all gaps of a plan."""
        parts = [self._gap(*gap) for gap in self._gaps(computed, range(len(computed)))]
        return sum(alone for alone, _ in parts), np.sum([together for _, together in parts], axis=0)

    def without(self, computed: tuple[int, ...], places: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """The totals of plans that lack one of `computed` each, that at one of `places` (0 is never among them)."""
        alone, together = self.total(computed)
        alones, togethers = [], []
        for place in places:
            fewer = computed[:place] + computed[place + 1 :]
            old = self._gaps(computed, range(place - 1, min(place + 2, len(computed))))
            new = self._gaps(fewer, range(place - 1, min(place + 1, len(fewer))))
            parts = [(1, self._gap(*gap)) for gap in new] + [(-1, self._gap(*gap)) for gap in old]
            alones.append(alone + sum(sign * part[0] for sign, part in parts))
            togethers.append(together + sum(sign * part[1] for sign, part in parts))
        return np.array(alones), np.array(togethers)

    def _gaps(self, computed: tuple[int, ...], places: range) -> list[tuple[int | None, int, int]]:
        """(computed step before, computed step, end) of the gaps behind those at `places`."""
        ends = (*computed, self._errors.num_steps)
        return [(ends[place - 1] if place else None, ends[place], ends[place + 1]) for place in places]

    def _gap(self, before: int | None, last: int, end: int) -> tuple[float, np.ndarray]:
        key = (before, last, end)
        if key not in self._known:
            rows = self._rows(before, last, np.arange(last + 1, end))
            alone = float(np.einsum("ij,ij->", rows @ self._errors.products, rows))
            self._known[key] = alone, rows.sum(axis=0)
        return self._known[key]

    def _rows(self, before: int | None, last: int, steps: np.ndarray) -> np.ndarray:
        """What stands for the velocity of each step less what it would have been, by the length of the step."""
        places, levels = np.arange(len(steps)), self._levels
        rows = np.zeros((len(steps), self._errors.num_steps))
        rows[:, last] = 1.0
        if before is not None and self._pull:
            far = self._pull * (levels[steps] - levels[last]) / (levels[last] - levels[before])
            rows[:, last] += far
            rows[:, before] = -far
        rows[places, steps] -= 1.0
        return np.asarray(rows * self._errors.lengths[steps, None])


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
    """Plans of ever fewer steps, each without the one that is missed least; and their errors."""
    gaps, kept = _LineGaps(errors, pull), tuple(range(errors.num_steps))
    found = [(kept, 0.0)]
    while places := [place for place, step in enumerate(kept) if step not in always]:
        without = errors.of_sums(*gaps.without(kept, places))
        place = places[int(np.argmin(without))]
        kept = kept[:place] + kept[place + 1 :]
        found.append((kept, float(without.min())))
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
