"""Every rule as a row of numbers: what it gives for velocities of which the answer is known."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epe.cache import CacheRules, last_uses, num_kept, num_records, resolve, weights
from epe.messages import FreeCache, MagCache, MeanCache, Reuse, TaylorSeer, TeaCache
from tests.cache.profiles import made_up

SIGMAS = made_up().sigmas
NUM_STEPS = 20
STRATEGIES = {
    "free": FreeCache(),
    "mean": MeanCache(),
    "taylor": TaylorSeer(max_order=2),
    "mag": MagCache(),
    "tea": TeaCache(),
}


def predicted(reuse: Reuse, velocities: list[float], step: int) -> float:
    return sum(weight * velocities[at] for at, weight in weights(reuse, SIGMAS, step).items())


def test_magcache_holds_the_last_computed_velocity() -> None:
    reuse = Reuse(strategy=MagCache(), computed=(0, 1, 5))
    assert [dict(weights(reuse, SIGMAS, step)) for step in (1, 4, 5, 9)] == [{1: 1}, {1: 1}, {5: 1}, {5: 1}]


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_a_taylor_series_of_even_steps_follows_a_line_where_its_order_allows(order: int) -> None:
    reuse = Reuse(strategy=TaylorSeer(max_order=order), computed=(0, 3, 6, 9, 12))
    line = [2.0 + 0.5 * step for step in range(NUM_STEPS)]
    held = line[12]
    assert math.isclose(predicted(reuse, line, 14), line[14] if order else held)


def test_a_taylor_series_is_that_of_the_paper() -> None:
    """Differences over the last distance, worked out by hand for distances of 2 and 4."""
    reuse = Reuse(strategy=TaylorSeer(max_order=2), computed=(0, 2, 6))
    first, second, third = 1.0, 3.0, 11.0
    slope_before, slope = (second - first) / 2, (third - second) / 4
    bend = (slope - slope_before) / 4
    values = [first, 0, second, 0, 0, 0, third, *[0.0] * 13]
    assert math.isclose(predicted(reuse, values, 9), third + 3 * slope + 9 / 2 * bend)


def test_freecache_adds_the_gaps_part_of_the_last_difference() -> None:
    reuse = Reuse(strategy=FreeCache(), computed=(0, 4, 7), pulls=(0.9, 0.5, 0.0))
    assert [dict(weights(reuse, SIGMAS, step)) for step in (2, 4, 6, 9)] == [
        {0: 1},
        {4: 1},
        {0: -0.5, 4: 1.5},
        {7: 1},
    ]


def test_meancache_meets_the_mean_velocity_of_the_next_interval_of_a_line() -> None:
    """Of a velocity that is a line in sigma, over even steps: half a step beyond the last one, and half a step from it
    the mean of the last interval by Euler is the velocity at its start."""
    even = tuple(1 - step / NUM_STEPS for step in range(NUM_STEPS + 1))
    line = [2.0 * sigma for sigma in even[:-1]]
    reuse = Reuse(strategy=MeanCache(), computed=tuple(range(6)), orders=(4,) * NUM_STEPS)
    got = sum(weight * line[at] for at, weight in weights(reuse, even, 6).items())
    slope, length = 2.0, 1 / NUM_STEPS
    mean_of_four = sum(line[2:6]) / 4
    by_hand = line[5] - (line[2] - mean_of_four) / (-4 * length) * -length
    assert math.isclose(got, by_hand)
    assert line[6] < got < line[5], f"it leads on down the line of slope {slope}"


@given(
    budget=st.integers(2, NUM_STEPS),
    kind=st.sampled_from(["free", "mean", "taylor", "mag"]),
    order=st.integers(0, 3),
)
def test_weights_sum_to_one_and_come_from_computed_steps_before(budget: int, kind: str, order: int) -> None:
    strategies = {
        "free": FreeCache(fresh_budget=budget),
        "mean": MeanCache(fresh_steps=budget),
        "taylor": TaylorSeer(fresh_threshold=2 + order, max_order=order),
        "mag": MagCache(threshold=budget / 10, max_skip_steps=2 + order),
    }
    reuse = resolve(strategies[kind], CacheRules(profile=made_up()), num_steps=NUM_STEPS)
    assert reuse is not None
    for step in range(NUM_STEPS):
        terms = weights(reuse, SIGMAS, step)
        assert math.isclose(sum(terms.values()), 1.0, abs_tol=1e-9)
        assert all(at <= step and reuse.computes(at) for at in terms)
        assert all(last_uses(reuse, SIGMAS)[at] >= step for at in terms if at != step)


def test_what_is_kept_at_once_is_bounded_by_the_rule() -> None:
    spaced = tuple(range(0, NUM_STEPS, 3))
    assert num_records(Reuse(strategy=MagCache(), computed=spaced), NUM_STEPS) == 1
    assert num_records(Reuse(strategy=TaylorSeer(max_order=2), computed=spaced), NUM_STEPS) == 3
    assert (
        num_records(Reuse(strategy=FreeCache(), computed=spaced, pulls=(0.5,) * len(spaced)), NUM_STEPS) == 2
    )
    assert num_records(Reuse(strategy=MagCache(), computed=tuple(range(NUM_STEPS))), NUM_STEPS) == 0


def test_a_step_with_nothing_before_it_cannot_be_led_on_to() -> None:
    with pytest.raises(ValueError, match="no computed step before"):
        weights(Reuse(strategy=MagCache(), computed=(3,)), SIGMAS, 1)


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("num_steps", [1, 9, NUM_STEPS])
def test_the_most_that_is_kept_at_once_is_that_of_the_fullest_boundary(kind: str, num_steps: int) -> None:
    reuse = resolve(STRATEGIES[kind], CacheRules(profile=made_up()), num_steps=num_steps)
    assert reuse is not None
    kept = [num_kept(reuse, step, num_steps=num_steps) for step in range(num_steps)]
    assert num_records(reuse, num_steps) == max(kept)


def test_what_many_steps_keep_is_found_without_asking_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's loop stood for a quarter of a second whenever a request of 1,000 steps came."""
    reuse = resolve(FreeCache(fresh_budget=200), CacheRules(profile=made_up()), num_steps=1000)
    assert reuse is not None
    asked: list[int] = []
    monkeypatch.setattr(
        sys.modules[num_records.__module__],
        "num_kept",
        lambda *given, num_steps: asked.append(num_steps) or 0,
    )
    num_records.cache_clear()
    assert num_records(reuse, 1000) == 2
    assert asked == []
