"""Whatever the policy does within the rules: every task runs once and in order, and no rank does two things."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epe.messages import Stage
from epe.planning.policies import BUILT_IN
from epe.simulator.baselines import BASELINES
from epe.simulator.machine import Physics
from epe.simulator.outcome import Outcome
from epe.simulator.policies import policy_of
from tests.simulator.scenes import LARGE, SMALL, Chance, arrival, run

requests = st.lists(
    st.tuples(
        st.floats(0, 20), st.sampled_from([SMALL, LARGE]), st.integers(1, 6), st.none() | st.floats(5, 60)
    ),
    min_size=1,
    max_size=8,
)
physics = st.builds(
    Physics,
    dispatch_s=st.sampled_from([0.0, 0.1]),
    plan_s=st.sampled_from([0.0, 0.05]),
    jitter=st.sampled_from([0.0, 0.5]),
    look_ahead_s=st.sampled_from([0.0, 0.5, 100.0]),
    seed=st.integers(0, 9),
)


def check(outcome: Outcome, steps: dict[str, int], arrivals: dict[str, float]) -> None:
    for rank in range(outcome.world_size):
        mine = sorted((w.begin_s, w.end_s, w.seq) for w in outcome.work if rank in w.ranks)
        assert all(earlier[1] <= later[0] + 1e-9 for earlier, later in pairwise(mine))
        assert [seq for _, _, seq in mine] == sorted(seq for _, _, seq in mine)
    for name, num_steps in steps.items():
        mine = sorted((w for w in outcome.work if w.request_id == name), key=lambda w: w.begin_s)
        assert [w.stage for w in mine][:1] == [Stage.ENCODE]
        assert [w.stage for w in mine][-1:] == [Stage.DECODE]
        done = [step for w in mine for step in range(w.first_step, w.first_step + w.num_steps)]
        assert done == list(range(num_steps))
        assert len([w for w in mine if w.stage is not Stage.DENOISE]) == 2
        assert all(earlier.end_s <= later.begin_s + 1e-9 for earlier, later in pairwise(mine))
        assert mine[0].begin_s >= arrivals[name]
    assert sorted(record.request_id for record in outcome.records) == sorted(steps)


@settings(max_examples=60, deadline=None)
@given(requests, physics, st.integers(0, 1000))
def test_every_task_runs_once_and_in_order_and_no_rank_is_in_two_leases(given_requests, given_physics, seed):
    made = [
        arrival(f"r{i}", at, size=size, steps=steps, deadline_s=deadline)
        for i, (at, size, steps, deadline) in enumerate(given_requests)
    ]
    outcome = run(Chance(seed), *made, physics=given_physics)
    check(
        outcome,
        {a.request.id: a.request.num_steps for a in made},
        {a.request.id: a.arrival_s for a in made},
    )


@pytest.mark.parametrize("name", [name for name in (*BUILT_IN, *BASELINES) if name != "static-sp8"])
def test_every_policy_that_can_be_named_keeps_the_rules(name: str):
    made = [
        arrival(f"r{i}", 1.7 * i, size=(SMALL, LARGE)[i % 2], steps=1 + i % 4, deadline_s=25.0)
        for i in range(24)
    ]
    policy = policy_of(name, widths=(1, 2, 4), world_size=4)
    outcome = run(policy, *made, physics=Physics(dispatch_s=0.01, jitter=0.1))
    check(
        outcome,
        {a.request.id: a.request.num_steps for a in made},
        {a.request.id: a.arrival_s for a in made},
    )
