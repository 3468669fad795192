"""Which steps FreeCache computes, and how it leads on between them: chosen by what a profile says of a model.

Between two computed steps the latents move on by the last velocity and a part of its difference to the one before: the
gap's pull. What counts is where they arrive: the squared distance from where all the velocities between would have led
follows from their inner products, and so does the pull that makes it least. What the end sees of it is the gain of the
step of arrival, since later steps mend much of what went astray, and early ones make more of it. So a plan costs the
sum over its gaps, and the best one of any number of steps is a shortest way (`shortest`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from epe.cache.products import gains_at, products_at
from epe.cache.profile import Profile
from epe.cache.shortest import shortest_ways

# A pull costs this part of a velocity's mean squared length: between two that are nearly the same there is none.
_RELUCTANCE = 1e-5
# Of so many steps the best plan is found, of more the best one under any of some bounds: its gaps are no longer than
# can be looked at in about the same time, and in turn it computes every step at most, every second, every fourth ...,
# where gaps can be longer.
EXACT_STEPS = 100
# What it is expected to miss, and the steps that it computes.
_Plan = tuple[float, np.ndarray]


class Choice(NamedTuple):
    """The steps that are computed, the pull behind each of them, and what of the squared way from noise to picture the
    end is expected to miss."""

    computed: tuple[int, ...]
    pulls: tuple[float, ...]
    error: float


def free_choice(profile: Profile, num_steps: int, always: frozenset[int], budget: int) -> Choice:
    """The best choice of at most `budget` steps, or the least one where `always`, of which step 0 is one, are more.
    What fits a budget fits every larger one, so none is worse."""
    plans = _plans(profile, num_steps, always)
    return choice_of(gaps_of(profile, num_steps), tuple(plans[budget - 1].tolist()))


def choice_of(gaps: Gaps, computed: tuple[int, ...]) -> Choice:
    """What these steps, of which 0 is one, give with their best pulls."""
    after = np.array([*computed[1:], gaps.num_steps])
    costs, pulls = gaps.at(np.array([0, *computed[:-1]]), np.array(computed), after)
    return Choice(computed, tuple(float(f"{pull:.7g}") for pull in pulls), float(sum(costs)))


@lru_cache(maxsize=8)
def _plans(profile: Profile, num_steps: int, always: frozenset[int]) -> tuple[np.ndarray, ...]:
    """The steps of the best plan that was found within each budget from 1 on."""
    gaps = gaps_of(profile, num_steps)
    best: dict[int, _Plan] = {}
    for plan in _candidates(gaps, always):
        size = len(plan[1])
        best[size] = min(plan, best.get(size, plan), key=_error)
    plans = [best[min(best)]]
    for budget in range(2, num_steps + 1):
        plans.append(min(best.get(budget, plans[-1]), plans[-1], key=_error))
    return tuple(steps for _, steps in plans)


def _error(plan: _Plan) -> float:
    return plan[0]


def _candidates(gaps: Gaps, always: frozenset[int], *, exact: int = EXACT_STEPS) -> Iterator[_Plan]:
    """The best plans of each number of steps that hold `always`, under each of some bounds of which none is needed up
    to `exact` steps."""
    stride, places = 1, np.arange(gaps.num_steps)
    while len(places) - len(always) > exact:
        reach = max(exact**2 // len(places), 1)
        yield from shortest_ways(gaps.costs, places, gaps.num_steps, always=always, reach=reach)
        stride *= 2
        places = np.array(sorted({*range(0, gaps.num_steps, stride), *always}))
    yield from shortest_ways(gaps.costs, places, gaps.num_steps, always=always, reach=len(places))


class Gaps:
    """All gaps of a model at one number of steps."""

    def __init__(self, profile: Profile, num_steps: int) -> None:
        sigmas, products = products_at(profile, num_steps)
        self.num_steps = num_steps
        self._ways = _Ways(np.asarray(sigmas), products)
        self._products = products
        self._mean_size = np.diag(products).mean()
        self._gains = np.asarray(gains_at(profile, num_steps)) ** 2

    def costs(self, before: np.ndarray, last: np.ndarray, after: np.ndarray) -> np.ndarray:
        """What gaps between computed steps cost, of which `after` may be the end. Where nothing was computed before the
        last, it is `before` too."""
        return self.at(before, last, after)[0]

    def at(self, before: np.ndarray, last: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What gaps cost, and their pulls."""
        ways, products = self._ways, self._products
        size, both = products[last, last], products[before, last]
        # Held, the last velocity misses a way; the turn is its difference to the one before over the whole gap.
        span = ways.levels[after] - ways.levels[last + 1]
        gone = ways.with_velocity(last, after, last)
        miss = ways.squared(last, after) - 2 * span * gone + span**2 * size
        turned = span * (gone - ways.with_velocity(last, after, before) - span * (size - both))
        turn = span**2 * (size - 2 * both + products[before, before])
        pulls = turned / (turn + _RELUCTANCE * span**2 * self._mean_size + np.finfo(float).tiny)
        left = np.maximum(miss - pulls * (2 * turned - pulls * turn), 0)
        return self._gains[after] * left, pulls


@lru_cache(maxsize=2)
def gaps_of(profile: Profile, num_steps: int) -> Gaps:
    """Those of a model."""
    return Gaps(profile, num_steps)


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
