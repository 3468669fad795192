"""Requests of more steps than the best plan is looked for among all."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from epe.cache import CacheRules, resolve, weights
from epe.cache.freecache import EXACT_STEPS, Choice, free_choice, gaps_of
from epe.cache.products import products_at
from epe.cache.schedule import forced
from epe.cache.shortest import shortest_ways
from epe.cache.weights import _mean_rows
from epe.messages import FreeCache, MeanCache
from tests.cache.profiles import made_up

PROFILE = made_up(num_steps=50, seed=1)


@pytest.mark.parametrize("strategy", [FreeCache, MeanCache])
@pytest.mark.parametrize("num_steps", [101, 1000])
def test_any_number_of_steps_is_planned(strategy: type[FreeCache | MeanCache], num_steps: int) -> None:
    """More than 100 were refused."""
    budget = "fresh_budget" if strategy is FreeCache else "fresh_steps"
    for num_computed in (2, num_steps // 3, num_steps):
        asked = strategy(**{budget: num_computed})
        reuse = resolve(asked, CacheRules(profile=PROFILE), num_steps=num_steps)
        assert reuse is not None
        assert len(reuse.computed) == num_computed
        assert (reuse.computed[0], reuse.computed[-1]) == (0, num_steps - 1)


@pytest.mark.parametrize("strategy", [FreeCache, MeanCache])
@pytest.mark.parametrize("num_more", [0, 1, 40])
def test_what_is_computed_in_any_case_leaves_long_gaps(
    strategy: type[FreeCache | MeanCache], num_more: int
) -> None:
    budget = "fresh_budget" if strategy is FreeCache else "fresh_steps"
    asked = strategy(warmup_steps=100, cooldown_steps=80, **{budget: 180 + num_more})
    reuse = resolve(asked, CacheRules(profile=PROFILE), num_steps=700)
    assert reuse is not None
    assert {*range(100), *range(620, 700)} <= set(reuse.computed)
    assert len(reuse.computed) == 180 + num_more


def test_a_plan_of_many_steps_that_are_computed_in_any_case_needs_little_memory() -> None:
    """A client that asked for it had the leader take 2 GB."""
    asked = FreeCache(warmup_steps=620, fresh_budget=640)
    gaps_of(PROFILE, 700)
    tracemalloc.start()
    try:
        resolve(asked, CacheRules(profile=PROFILE), num_steps=700)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200e6, "700 steps by 700 by 700 of two bytes are 686 MB"


def choices(num_steps: int, *, warmup: int = 1) -> list[Choice]:
    always = frozenset(forced(num_steps, warmup=warmup, cooldown=1))
    return [free_choice(PROFILE, num_steps, always, budget) for budget in range(1, num_steps + 1)]


@pytest.mark.parametrize(("num_steps", "warmup"), [(101, 1), (260, 1), (260, 130)])
def test_a_larger_budget_never_fits_worse_however_many_steps_there_are(num_steps: int, warmup: int) -> None:
    found = choices(num_steps, warmup=warmup)
    for budget, choice in enumerate(found, start=1):
        assert set(range(warmup)) < set(choice.computed)
        assert len(choice.computed) <= max(budget, warmup + 1)
        assert len(choice.pulls) == len(choice.computed)
        assert choice.error <= found[budget - 2].error or budget == 1
    assert found[-1].error == 0


def test_the_best_plan_of_many_steps_is_hardly_better_than_the_one_that_is_found() -> None:
    num_steps = EXACT_STEPS * 3 // 2
    gaps, found = gaps_of(PROFILE, num_steps), choices(num_steps)
    best = shortest_ways(
        gaps.costs, np.arange(num_steps), num_steps, always=(0, num_steps - 1), reach=num_steps
    )
    for least, steps in best:
        error = found[len(steps) - 1].error
        assert least <= error * (1 + 1e-9) + 1e-15
        assert error <= 1.02 * least + 1e-15


def test_the_weights_of_a_late_step_of_many_are_known_at_once() -> None:
    """A rank that went on with MeanCache at step 900 called itself for each step before, too often for Python."""
    reuse = resolve(MeanCache(fresh_steps=20), CacheRules(profile=PROFILE), num_steps=1000)
    assert reuse is not None
    sigmas = products_at(PROFILE, 1000)[0]
    weights.cache_clear()
    _mean_rows.cache_clear()
    last_led = max(set(range(1000)) - set(reuse.computed))
    assert sum(weights(reuse, sigmas, last_led).values()) == pytest.approx(1.0)
