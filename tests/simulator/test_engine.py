"""Schedules that can be computed by hand, and what a simulation does with policies that break the rules."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from msgspec.structs import replace

from epe.errors import BadSetting
from epe.messages import Stage
from epe.planning.costs import CostTable
from epe.planning.view import Assignment
from epe.simulator.machine import Physics
from epe.simulator.policies import policy_of
from tests.simulator.scenes import Chance, Does, Lanes, OneRank, arrival, machine, run, task


def spans(outcome) -> list[tuple[str, str, tuple[int, ...], float, float]]:
    return [(w.request_id, w.stage.value, w.ranks, w.begin_s, w.end_s) for w in outcome.work]


def test_one_request_on_one_rank_takes_the_sum_of_its_tasks():
    outcome = run(OneRank(), arrival("a", 10.0))
    assert spans(outcome) == [
        ("a", "encode", (0,), 10.0, 11.0),
        ("a", "denoise", (0,), 11.0, 15.0),
        ("a", "denoise", (0,), 15.0, 19.0),
        ("a", "decode", (0,), 19.0, 21.0),
    ]
    (record,) = outcome.records
    assert (record.arrival_s, record.started_s, record.finish_s) == (10.0, 10.0, 21.0)
    assert (record.single_s, record.best_s, record.num_migrations) == (11.0, 7.0, 0)


def test_the_file_is_made_off_the_ranks():
    outcome = run(OneRank(), arrival("a"), arrival("b"), finish_s=5.0)
    assert [record.finish_s for record in outcome.records] == [11.0 + 5.0, 22.0 + 5.0]


def test_a_rank_that_lacks_the_state_fetches_it_first():
    outcome = run(Lanes({"a": (0, 1)}), arrival("a"))
    assert spans(outcome)[1] == ("a", "denoise", (0, 1), 1.5, 4.5)
    assert spans(outcome)[2] == ("a", "denoise", (0, 1), 4.5, 7.5)
    assert outcome.records[0].num_migrations == 1


def test_a_policy_sees_the_move_in_when_a_rank_will_be_free():
    policy = Lanes({"a": (1,), "b": (2,)})
    outcome = run(policy, arrival("a"), arrival("b", 2.0))
    step = next(work for work in outcome.work if work.stage is Stage.DENOISE)
    seen = next(view for view in policy.views if view.now_s == 2.0)
    assert (step.begin_s, step.end_s) == (1.5, 5.5)
    assert seen.ranks[1].free_s == step.end_s
    assert next(t for t in seen.trajectories if t.request_id == "a").ready_s == step.end_s


def test_a_state_comes_while_its_rank_still_works_on_an_earlier_lease():
    def plan(view):
        names = {t.request_id: t for t in view.trajectories}
        if "a" in names and names["a"].num_leases == 0 and names["a"].stage is Stage.ENCODE:
            return (task(names["a"], 0), task(names["b"], 1))
        if view.now_s == 1.0 and names["a"].num_leases == 0:
            # a computes on rank 0 from 1 to 9; b moves there from rank 1 and waits behind it.
            return (task(names["a"], 0, steps=2),)
        if view.now_s == 2.0 and names["b"].num_leases == 0:
            return (task(names["b"], 0),)
        return tuple(task(t, 0) for t in view.trajectories[:1] if view.ranks[0].num_leases == 0)

    # The third request only makes the policy be asked at 2 s.
    outcome = run(
        Does(plan),
        arrival("a"),
        arrival("b"),
        arrival("c", 2.0),
        physics=Physics(look_ahead_s=100.0),
    )
    moved = next(w for w in outcome.work if w.request_id == "b" and w.stage is Stage.DENOISE)
    assert (moved.ranks, moved.begin_s) == ((0,), 9.0)


def test_a_lease_waits_for_the_last_of_its_ranks_and_holds_the_others():
    policy = Lanes({"a": (0, 1), "b": (1,)}, encode=1)
    outcome = run(policy, arrival("b"), arrival("a"), physics=Physics(look_ahead_s=100.0))
    work = [w for w in outcome.work if 1 in w.ranks]
    assert all(later.begin_s >= earlier.end_s for earlier, later in pairwise(work))
    assert [w.seq for w in work] == sorted(w.seq for w in work)


def test_a_lease_that_was_sent_ahead_hides_the_way_to_its_rank():
    ahead = run(Lanes({"a": (0,)}), arrival("a"), physics=Physics(dispatch_s=0.1, look_ahead_s=0.2))
    late = run(OneRank(), arrival("a"), physics=Physics(dispatch_s=0.1))
    assert ahead.records[0].finish_s == pytest.approx(11.0 + 0.1)
    assert late.records[0].finish_s == pytest.approx(11.0 + 4 * 0.1)


def test_a_task_that_ends_within_the_look_ahead_is_followed_without_a_gap():
    outcome = run(
        Lanes({"a": (0,)}), arrival("a"), physics=Physics(dispatch_s=0.1, plan_s=0.1, look_ahead_s=100.0)
    )
    assert all(later.begin_s == earlier.end_s for earlier, later in pairwise(outcome.work))


def test_what_was_not_sent_ahead_waits_for_the_report_of_the_task_before():
    late = run(OneRank(), arrival("a"), physics=Physics(report_s=0.1))
    # Of the encode and of two steps; a decode leaves no state behind.
    assert late.records[0].finish_s == pytest.approx(11.0 + 3 * 0.1)


def test_ranks_behind_the_head_of_a_lane_do_not_wait_for_the_state_in_its_report():
    own = {"a": (0, 1), "b": (1,)}

    def plan(view):
        idle = {rank.rank for rank in view.ranks if rank.num_leases == 0}
        for trajectory in view.trajectories:
            lane = own[trajectory.request_id]
            ranks = lane if trajectory.stage is Stage.DENOISE else lane[:1]
            if idle.issuperset(ranks) and trajectory.num_leases == 0:
                return (task(trajectory, *ranks, steps=2),)
        return ()

    outcome = run(Does(plan), arrival("a"), arrival("b", 3.0), physics=Physics(report_s=0.5))
    begun = {(w.request_id, w.stage): w.begin_s for w in outcome.work}
    # Both ranks end a's steps at 8 s, and the head has reported at 8.5.
    assert (begun["b", Stage.ENCODE], begun["a", Stage.DECODE]) == (8.0, 8.5)


@pytest.mark.parametrize("name", ["throughput", "latency", "slo", "fair", "elastic", "stage-static"])
def test_reports_that_come_late_leave_no_gap_between_the_tasks_of_a_rank(name):
    policy = policy_of(name, widths=(1,), world_size=1)
    arrivals = [arrival(each) for each in ("a", "b", "c")]
    outcome = run(policy, *arrivals, world=1, physics=Physics(report_s=0.04))
    assert [later.begin_s for later in outcome.work[1:]] == pytest.approx(
        [w.end_s for w in outcome.work[:-1]]
    )


def test_while_the_planner_thinks_events_wait():
    own = {"a": 0, "b": 1}

    def plan(view):
        idle = [t for t in view.trajectories if view.ranks[own[t.request_id]].num_leases == 0]
        return tuple(task(t, own[t.request_id]) for t in idle)

    outcome = run(Does(plan), arrival("a"), arrival("b", 0.1), physics=Physics(plan_s=0.5))
    # b comes while the first plan is made, is seen at 0.5 and planned until 1.0.
    assert [w.begin_s for w in outcome.work if w.stage is Stage.ENCODE] == [0.5, 1.0]


def test_all_that_happens_at_one_moment_is_taken_before_the_policy_is_asked():
    policy = Lanes({"a": (0,), "b": (1,)}, encode=0)
    run(policy, arrival("a"), arrival("b", 1.0))
    seen = next(view for view in policy.views if view.now_s == 1.0)
    assert [(t.request_id, t.stage) for t in seen.trajectories] == [("a", Stage.DENOISE), ("b", Stage.ENCODE)]


def test_the_same_seed_gives_the_same_run():
    arrivals = [arrival(f"r{i}", i * 0.7, steps=1 + i % 5) for i in range(20)]
    physics = Physics(jitter=0.2, seed=3)
    one, two = (run(Chance(5), *arrivals, physics=physics) for _ in range(2))
    assert replace(one, plan_s=()) == replace(two, plan_s=())
    other = run(Chance(5), *arrivals, physics=replace(physics, seed=4))
    assert [w.end_s for w in other.work] != [w.end_s for w in one.work]


def test_tasks_vary_alike_whatever_the_policy_makes_of_them():
    def step_seconds(seed: int) -> float:
        policy = Chance(seed, widths=(1,))
        outcome = run(
            policy, arrival("a", steps=10), arrival("b", steps=7), physics=Physics(jitter=0.3, seed=1)
        )
        return sum(w.end_s - w.begin_s for w in outcome.work if w.request_id == "a")

    assert step_seconds(1) == pytest.approx(step_seconds(2))
    assert step_seconds(1) != pytest.approx(1 + 40 + 2)


def test_a_policy_may_be_wrong_about_costs_and_time_goes_by_the_truth():
    believed = machine().table([arrival("a").workload], world_size=4)
    truth = CostTable({key: 2 * seconds for key, seconds in believed.measured.items()})
    from epe.simulator.engine import simulate

    outcome = simulate(
        [arrival("a")],
        policy=OneRank(),
        name="mine",
        costs=believed,
        truth=truth,
        world_size=4,
        correct_costs=True,
    )
    assert outcome.records[0].finish_s == 22.0
    (key,) = (key for key in believed.measured if key.stage is Stage.DENOISE and key.width == 1)
    assert believed.seconds(key) == 8.0


def test_a_request_that_waits_expires_at_its_deadline_and_one_that_runs_after_its_lease():
    first = arrival("runs", deadline_s=3.0, expire=True)
    outcome = run(OneRank(), first, arrival("waits", 0.5, deadline_s=1.0, expire=True), arrival("next", 1.0))
    ends = {record.request_id: (record.end, record.finish_s) for record in outcome.records}
    assert ends["waits"] == ("expired", 1.5)
    assert ends["runs"] == ("expired", 5.0)
    assert ends["next"] == ("finished", 5.0 + 11.0)
    assert [record.met for record in outcome.records] == [False, False, True]


def test_a_deadline_is_met_at_the_very_moment():
    outcome = run(OneRank(), arrival("a", deadline_s=11.0, expire=True), arrival("b", deadline_s=21.9))
    assert [record.met for record in outcome.records] == [True, False]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (lambda view: (task(view.trajectories[0], 0), task(view.trajectories[1], 0)), "in two lanes"),
        (lambda view: (task(view.trajectories[0], 9),), "do not exist"),
        (lambda view: (Assignment(request_id="x", ranks=(0,)),), "not waiting"),
        (lambda view: 1 / 0, "ZeroDivisionError"),
        (lambda view: None, "a plan is a tuple of assignments, not None"),
        (lambda view: ("a",), "a plan holds assignments, not 'a'"),
        (lambda view: (Assignment(request_id="a", ranks=[0]),), "ranks: [0] is not a tuple of whole numbers"),
        (lambda view: (Assignment(request_id="a", ranks=("0",)),), "ranks: ('0',) is not"),
        (lambda view: (Assignment(request_id="a", ranks=(0,), num_steps=1.5),), "num_steps: 1.5 is not"),
        (lambda view: (), "nothing runs, and it gives no lease"),
        (
            lambda view: (task(view.trajectories[0], 0, 1, 2),) if view.now_s else OneRank().plan(view),
            "1, 2, 4",
        ),
    ],
)
def test_a_policy_that_breaks_the_rules_ends_the_run_with_its_name_the_time_and_the_fault(plan, words):
    with pytest.raises(BadSetting, match=r"policy mine: at \d+\.\d\d\d s: ") as caught:
        run(Does(plan), arrival("a"), arrival("b"))
    assert words in str(caught.value)


def test_a_fallback_takes_over_where_the_service_would_let_it():
    outcome = run(Does(lambda view: 1 / 0), arrival("a"), fallback=OneRank())
    assert outcome.records[0].finish_s == 11.0
    assert "ZeroDivisionError" in outcome.replaced


def test_two_requests_with_one_id_are_refused():
    with pytest.raises(BadSetting, match="same id"):
        run(OneRank(), arrival("a"), arrival("a", 1.0))


def test_a_clairvoyant_policy_sees_what_comes_and_may_hold_ranks_for_it():
    seen = []

    def plan(view):
        seen.append([(t.request_id, t.arrival_s, t.ready_s) for t in view.trajectories])
        return tuple(task(t, 0) for t in view.trajectories[:1] if view.ranks[0].num_leases == 0)

    outcome = run(
        Does(plan),
        arrival("b", 20.0),
        arrival("a", 2.0),
        arrival("c", 90.0),
        physics=Physics(clairvoyant=True, foresight_s=50.0, look_ahead_s=0.0),
    )
    assert seen[0] == [("a", 2.0, 2.0), ("b", 20.0, 20.0)]
    finished = {record.request_id: record.finish_s for record in outcome.records}
    assert finished == {"a": 13.0, "b": 31.0, "c": 101.0}


class EveryFive:
    """Plans at multiples of five seconds alone."""

    def plan(self, view):
        return OneRank().plan(view) if math.isclose(view.now_s % 5, 0, abs_tol=1e-9) else ()

    def wake_s(self, view):
        return (view.now_s // 5 + 1) * 5


def test_a_policy_in_rounds_is_asked_at_its_own_times():
    outcome = run(EveryFive(), arrival("a"))
    assert [w.begin_s for w in outcome.work] == [0.0, 5.0, 10.0, 15.0]


def test_a_policy_that_wants_to_be_woken_in_the_past_is_refused():
    class Early(EveryFive):
        def wake_s(self, view):
            return view.now_s

    with pytest.raises(BadSetting, match="not later than now"):
        run(Early(), arrival("a"))


@pytest.mark.parametrize(
    ("wake_s", "words"), [(lambda: math.nan, "woken at nan"), (lambda: 1 / 0, "ZeroDivisionError")]
)
def test_a_wake_up_that_is_no_time_ends_the_run_with_the_policy_s_name(wake_s, words):
    class Odd(EveryFive):
        def wake_s(self, view):
            return wake_s()

    with pytest.raises(BadSetting, match=words) as caught:
        run(Odd(), arrival("a"))
    assert str(caught.value).startswith("policy mine: at ")


def test_a_policy_that_wakes_for_ever_and_leases_nothing_is_ended():
    class Idle(EveryFive):
        def plan(self, view):
            return ()

    with pytest.raises(BadSetting, match="gives no lease"):
        run(Idle(), arrival("a"))
