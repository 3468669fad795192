"""Plans that go on without what was kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epe.cache import CacheRules, last_uses, num_kept, records_at, refreshed, resolve, weights
from epe.cache.weights import even_levels
from epe.messages import FreeCache, MagCache, MeanCache, Pab, Reuse, Strategy, TaylorSeer, TeaCache
from tests.cache.profiles import made_up

RULES = CacheRules(profile=made_up(), attention=("joint",))
STEPS = 20
LEVELS = even_levels(STEPS)
EVERY = (MagCache(), MeanCache(fresh_steps=7), TaylorSeer(max_order=2), FreeCache(fresh_budget=7))


def planned(strategy: Strategy) -> Reuse:
    reuse = resolve(strategy, RULES, num_steps=STEPS)
    assert reuse is not None
    return reuse


@settings(max_examples=60, deadline=None)
@given(
    strategy=st.sampled_from(EVERY), boundaries=st.lists(st.integers(1, STEPS - 1), min_size=1, max_size=4)
)
def test_no_step_uses_what_was_let_go_before_it_and_each_time_costs_one_step(
    strategy: Strategy, boundaries: list[int]
) -> None:
    plan = before = planned(strategy)
    for boundary in boundaries:
        before, plan = plan, refreshed(plan, boundary, num_steps=STEPS)
        assert len(plan.computed) - len(before.computed) in (0, 1)
        assert not plan.pulls or len(plan.pulls) == len(plan.computed)
        assert num_kept(plan, boundary, num_steps=STEPS) == 0
        for step in range(boundary):
            assert weights(plan, LEVELS, step) == weights(before, LEVELS, step), (
                "what is drawn stays as it is"
            )
    for step in range(STEPS):
        assert min(weights(plan, LEVELS, step)) >= plan.first_used(step)
        assert sum(weights(plan, LEVELS, step).values()) == pytest.approx(1.0)


@pytest.mark.parametrize("strategy", EVERY, ids=lambda each: type(each).__name__)
def test_where_nothing_is_kept_to_let_it_go_changes_no_step(strategy: Strategy) -> None:
    plan = planned(strategy)
    bare = [step for step in range(STEPS) if num_kept(plan, step, num_steps=STEPS) == 0]
    assert 0 in bare
    for boundary in bare:
        after = refreshed(plan, boundary, num_steps=STEPS)
        assert after.computed == plan.computed
        assert [weights(after, LEVELS, step) for step in range(STEPS)] == [
            weights(plan, LEVELS, step) for step in range(STEPS)
        ]


def test_what_is_kept_at_a_boundary_is_what_later_steps_use() -> None:
    plan = planned(FreeCache(fresh_budget=7))
    uses = last_uses(plan, LEVELS)
    for boundary in range(STEPS):
        used = {first for first, last in uses.items() if first < boundary <= last}
        assert set(records_at(plan, LEVELS, boundary)) == used
        assert num_kept(plan, boundary, num_steps=STEPS) == len(used)


def test_teacache_computes_the_step_before_which_it_was_let_go() -> None:
    plan = planned(TeaCache(threshold=0.2, coefficients=(1.0, 0.0)))
    assert [num_kept(plan, step, num_steps=STEPS) for step in (0, 5, STEPS - 1)] == [0, 2, 0]
    assert refreshed(plan, 5, num_steps=STEPS).computed == (0, 5, STEPS - 1)


def test_a_lease_with_pab_begins_where_nothing_is_kept() -> None:
    plan = planned(Pab())
    assert {num_kept(plan, step, num_steps=STEPS) for step in plan.joints} == {0}
