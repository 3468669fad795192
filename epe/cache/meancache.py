"""Which steps MeanCache computes, chosen by what a profile says that each absence would do.

A step's error is the difference of what leads on and what would have been computed; in inner products of computed
velocities it costs a few numbers. It is weighed by the length of the step.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from epe.cache.products import products_at
from epe.cache.profile import Profile

MAX_ORDER = 6
# No gap is looked at that is longer than so many steps, and so many times as long as if the computed steps that may be
# anywhere were spread evenly.
_LONG_STEPS, _LONG_TIMES = 100, 10


class _Gaps(NamedTuple):
    """What each gap costs that begins behind a computed step (rows) and has so many steps (columns), at the window that
    is best for it, if all before had been computed; and that window."""

    costs: np.ndarray
    windows: np.ndarray


@lru_cache(maxsize=64)
def mean_choice(
    profile: Profile, num_steps: int, always: frozenset[int], num_computed: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """MeanCache's computed steps, and the windows of all others by step: the cheapest way from the first step to the
    end over so many computed ones, where a gap costs the errors of its steps at the window that is best for it."""
    num_free = num_computed - len(always)
    longest = min(num_steps, max(_LONG_STEPS, _LONG_TIMES * num_steps // (num_free + 1)))
    gaps = _gaps(profile, num_steps, longest)
    computed = _cheapest(gaps.costs, always, num_computed)
    orders = [1] * num_steps
    for first, end in pairwise((*computed, num_steps)):
        orders[first + 1 : end] = [int(gaps.windows[first, end - first - 1])] * (end - first - 1)
    return computed, tuple(orders)


def _cheapest(costs: np.ndarray, always: frozenset[int], num_computed: int) -> tuple[int, ...]:
    """The `num_computed` steps, those of `always` among them, whose gaps cost least together."""
    num_steps, longest = costs.shape
    forced = np.array(sorted(always))
    # By step, and by how many are computed before it.
    known = np.full((num_steps + 1, num_computed + 1), np.inf)
    came = np.zeros(known.shape, np.int64)
    known[0, 0] = 0.0
    for end in range(1, num_steps + 1):
        first = max(0, end - longest, *forced[forced < end][-1:])
        begins = np.arange(first, end)
        ways = known[begins, :-1] + costs[begins, end - begins - 1][:, None]
        known[end, 1:], came[end, 1:] = ways.min(axis=0), first + ways.argmin(axis=0)
    steps = [num_steps]
    for count in range(num_computed, 0, -1):
        steps.append(int(came[steps[-1], count]))
    return tuple(steps[:0:-1])


@lru_cache(maxsize=4)
def _gaps(profile: Profile, num_steps: int, longest: int) -> _Gaps:
    sigmas, products = products_at(profile, num_steps)
    costs, windows = np.full((num_steps, longest), np.inf), np.ones((num_steps, longest), np.int8)
    for window in range(1, min(MAX_ORDER, num_steps) + 1):
        found = _costs_at(np.asarray(sigmas), products, window, longest)
        windows[found < costs] = window
        np.minimum(costs, found, out=costs)
    return _Gaps(costs, windows)


def _costs_at(sigmas: np.ndarray, products: np.ndarray, window: int, longest: int) -> np.ndarray:
    """What gaps cost with this window, where there are so many steps before; infinite elsewhere."""
    num_steps = len(products)
    costs = np.full((num_steps, longest), np.inf)
    costs[window - 1 :, 0] = 0.0
    led = _leads(sigmas, window)
    firsts = np.arange(window - 1, num_steps)
    sources = firsts[:, None] - np.arange(window)
    among = products[sources[:, :, None], sources[:, None, :]]
    # The velocities of the last steps, newest first, as sums of those of the sources.
    past = np.tile(np.eye(window), (len(firsts), 1, 1))
    for length in range(1, min(longest, num_steps)):
        firsts = firsts[firsts + length < num_steps]
        num, steps = len(firsts), firsts + length
        velocity = np.einsum("fi,fis->fs", led[steps], past[:num])
        missed = np.einsum("fst,ft->fs", among[:num], velocity) - 2 * products[sources[:num], steps[:, None]]
        errors = (velocity * missed).sum(axis=1) + products[steps, steps]
        costs[firsts, length] = costs[firsts, length - 1] + errors * (sigmas[steps] - sigmas[steps + 1]) ** 2
        past = np.concatenate([velocity[:, None], past[:num, :-1]], axis=1)
    return costs


def _leads(sigmas: np.ndarray, window: int) -> np.ndarray:
    """Of each step that has a whole `window` before it: the parts of the velocities of the steps before, newest first,
    of which its own is the sum (as in `weights`)."""
    num_steps = len(sigmas) - 1
    leads = np.zeros((num_steps, window))
    for step in range(window, num_steps):
        span = sigmas[step] - sigmas[step - window]
        lead = -(sigmas[step + 1] - sigmas[step]) / span
        shares = np.diff(sigmas[step - window : step + 1])[::-1] / span
        leads[step] = -lead * shares
        leads[step, 0] += 1
        leads[step, -1] += lead
    return leads
