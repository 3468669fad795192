"""Which steps FreeCache computes, and how it leads on between them: chosen by what a profile says of a model.

Between two computed steps the latents move on by the last velocity and a part of its difference to the one before: the
gap's pull. What counts is where they arrive: the squared distance from where all the velocities between would have led
follows from their inner products, and so does the pull that makes it least. What the end sees of it is the gain of the
step of arrival, since later steps mend much of what went astray, and early ones make more of it. So a plan costs the
sum over its gaps, and the best one of any number of steps is a shortest way.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from epe.cache.products import gains_at, products_at
from epe.cache.profile import Profile

# A pull costs this part of a velocity's mean squared length: between two that are nearly the same there is none.
_RELUCTANCE = 1e-5


class Choice(NamedTuple):
    """The steps that are computed, the pull behind each of them, and what of the squared way from noise to picture the
    end is expected to miss."""

    computed: tuple[int, ...]
    pulls: tuple[float, ...]
    error: float


class Gaps(NamedTuple):
    """All gaps between computed steps (before, last, next), where the next may be the end: what each costs, and its
    pull. Where nothing was computed before the last, it is `before` too."""

    costs: np.ndarray
    pulls: np.ndarray


@lru_cache(maxsize=64)
def free_choices(profile: Profile, num_steps: int, always: frozenset[int]) -> tuple[Choice, ...]:
    """For each budget of steps from 1 on, the best choice that stays within it, or the least one where `always`, of
    which step 0 is one, are more. What fits a budget fits every larger one, so none is worse."""
    gaps = gaps_of(profile, num_steps)
    found = {len(computed): computed for computed in _shortest(gaps.costs, always)}
    choices: list[Choice] = []
    for budget in range(1, num_steps + 1):
        choice = choice_of(gaps, found.get(budget, found[min(found)]))
        choices.append(min(choice, choices[-1], key=lambda each: each.error) if choices else choice)
    return tuple(choices)


def choice_of(gaps: Gaps, computed: tuple[int, ...]) -> Choice:
    """What these steps, of which 0 is one, give with their best pulls."""
    keys = list(zip((0, *computed), computed, (*computed[1:], len(gaps.costs)), strict=False))
    pulls = tuple(float(f"{gaps.pulls[key]:.7g}") for key in keys)
    return Choice(computed, pulls, float(sum(gaps.costs[key] for key in keys)))


@lru_cache(maxsize=4)
def gaps_of(profile: Profile, num_steps: int) -> Gaps:
    """Of a model at one number of steps."""
    sigmas, products = products_at(profile, num_steps)
    before, last, after = np.ogrid[:num_steps, :num_steps, : num_steps + 1]
    ways = _Ways(np.asarray(sigmas), products)
    size, both = products[last, last], products[before, last]

    # Held, the last velocity misses a way; the turn is its difference to the one before over the whole gap.
    span = ways.levels[after] - ways.levels[last + 1]
    gone = ways.with_velocity(last, after, last)
    miss = ways.squared(last, after) - 2 * span * gone + span**2 * size
    turned = span * (gone - ways.with_velocity(last, after, before) - span * (size - both))
    turn = span**2 * (size - 2 * both + products[before, before])
    pulls = turned / (turn + _RELUCTANCE * span**2 * np.diag(products).mean() + np.finfo(float).tiny)
    left = np.maximum(miss - pulls * (2 * turned - pulls * turn), 0)
    costs = np.asarray(gains_at(profile, num_steps))[after] ** 2 * left
    return Gaps(np.where((before <= last) & (last < after), costs, np.inf), pulls)


class _Ways:
    """The way that the velocities between a computed step and the next one make together, in inner products."""

    def __init__(self, levels: np.ndarray, products: np.ndarray) -> None:
        lengths, start = np.diff(levels), np.zeros((1, len(products)))
        self.levels = levels
        self._velocity = np.vstack([start, np.cumsum(lengths[:, None] * products, axis=0)])
        self._way = np.hstack([np.zeros((len(levels), 1)), np.cumsum(self._velocity * lengths, axis=1)])

    def with_velocity(self, last: np.ndarray, after: np.ndarray, step: np.ndarray) -> np.ndarray:
        """With the velocity of a step."""
        return np.asarray(self._velocity[after, step] - self._velocity[last + 1, step])

    def squared(self, last: np.ndarray, after: np.ndarray) -> np.ndarray:
        """With itself."""
        way, begin = self._way, last + 1
        return np.asarray(way[after, after] - 2 * way[after, begin] + way[begin, begin])


def _shortest(costs: np.ndarray, always: frozenset[int]) -> Iterator[tuple[int, ...]]:
    """The cheapest steps of each number that holds `always`: ways from step to step, each of which costs by where it
    comes from too."""
    num_steps = costs.shape[0]
    last, after = np.ogrid[:num_steps, : num_steps + 1]
    passed = np.array([sum(step < each for step in always) for each in range(num_steps + 1)])
    costs = np.where(passed[after] > passed[last + 1], np.inf, costs)
    best = np.full((num_steps, num_steps), np.inf)  # by the last two that are computed
    best[0, 0] = 0.0
    came: list[np.ndarray] = []
    for _ in range(num_steps):
        whole = best + costs[:, :, num_steps]
        if np.isfinite(whole.min()):
            yield _way_back(came, *np.unravel_index(int(whole.argmin()), whole.shape))
        onward = best[:, :, None] + costs[:, :, :num_steps]
        came.append(onward.argmin(axis=0))
        best = onward.min(axis=0)


def _way_back(came: list[np.ndarray], before: np.intp, last: np.intp) -> tuple[int, ...]:
    way = [int(last)]
    for each in reversed(came):
        way.append(int(before))
        before, last = each[before, last], before
    return tuple(reversed(way))
