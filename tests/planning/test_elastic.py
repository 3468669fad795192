from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epe.messages import Stage
from epe.planning.costs import Workload
from epe.planning.elastic import Elastic, ElasticSettings
from tests.planning.contract import fault_of
from tests.planning.views import SIZES, costs, trajectory, view


def elastic(world: int = 4, **fields) -> Elastic:
    return Elastic(ElasticSettings(widths=tuple(range(1, world + 1)), **fields))


def lanes(plan) -> dict[str, tuple[int, ...]]:
    return {assignment.request_id: assignment.ranks for assignment in plan}


def test_a_lone_request_gets_the_whole_world():
    assert lanes(elastic().plan(view(trajectory("a")))) == {"a": (0, 1, 2, 3)}


def test_a_world_that_does_not_scale_is_shared():
    flat = view(trajectory("a"), trajectory("b"), costs=costs(speed_up=0.1))
    assert {len(ranks) for ranks in lanes(elastic().plan(flat)).values()} == {2}


def test_many_equal_requests_get_one_rank_each():
    plan = lanes(elastic().plan(view(*(trajectory(f"q{i}") for i in range(4)), costs=costs(speed_up=0.5))))
    assert sorted(plan.values()) == [(0,), (1,), (2,), (3,)]


def test_an_encode_and_a_decode_take_one_rank():
    plan = lanes(
        elastic().plan(
            view(trajectory("e", stage=Stage.ENCODE), trajectory("d", stage=Stage.DECODE, step=20))
        )
    )
    assert {name: len(ranks) for name, ranks in plan.items()} == {"e": 1, "d": 1}


def test_a_deadline_that_needs_the_width_gets_it_first():
    one_s = 20 * 1e-4 * 1024  # at width 1
    urgent = trajectory("urgent", deadline_s=one_s * 0.4)
    plan = lanes(elastic().plan(view(trajectory("old", arrival_s=-9.0), urgent)))
    assert len(plan["urgent"]) >= 3


def test_a_request_that_is_late_anyway_makes_no_other_late():
    one_s = 20 * 1e-4 * 1024
    hopeless = trajectory("hopeless", deadline_s=0.01)
    savable = trajectory("savable", deadline_s=one_s * 0.35)
    plan = lanes(elastic().plan(view(hopeless, savable)))
    assert len(plan["savable"]) == 4
    assert "hopeless" not in plan


def test_a_long_guard_does_not_make_a_short_deadline_hopeless():
    short = trajectory("short", deadline_s=1.0)
    plan = elastic(deadline_guard_s=3.0).plan(view(trajectory("a", arrival_s=-1.0), short))
    assert plan[0].request_id == "short"


def test_a_starved_request_goes_before_everything():
    starving = trajectory("starving", served_s=-1000.0, workload=Workload(tokens=16384, conditions=2))
    others = [trajectory(f"q{i}", priority=1, served_s=-1.0) for i in range(8)]
    assert "starving" in lanes(elastic(starvation_s=30).plan(view(*others, starving)))


def test_a_large_priority_goes_first():
    others = [trajectory(f"q{i}", arrival_s=-1.0) for i in range(8)]
    assert "vip" in lanes(elastic().plan(view(*others, trajectory("vip", priority=5))))


def test_a_running_request_keeps_its_ranks_when_nothing_is_gained():
    kept = trajectory("kept", lane=(2, 3), holders=(2, 3), step=5)
    other = trajectory("other", lane=(0, 1), holders=(0, 1), step=5)
    plan = lanes(elastic().plan(view(kept, other, costs=costs(speed_up=0.5))))
    assert plan == {"kept": (2, 3), "other": (0, 1)}


def test_a_request_that_is_alone_again_widens():
    alone = trajectory("alone", lane=(2,), holders=(2,), step=5)
    assert lanes(elastic().plan(view(alone)))["alone"] == (0, 1, 2, 3)


def test_widening_must_repay_what_it_costs():
    nearly_done = trajectory("a", lane=(2,), holders=(2,), step=19)
    assert lanes(elastic(resize_hysteresis_s=1.0).plan(view(nearly_done)))["a"] == (2,)
    far_from_it = trajectory("a", lane=(2,), holders=(2,), step=0, num_steps=200)
    assert len(lanes(elastic(resize_hysteresis_s=1.0).plan(view(far_from_it)))["a"]) == 4


def test_after_the_cut_off_step_a_lane_keeps_its_width():
    running = trajectory("a", lane=(2,), holders=(2,), step=5)
    assert lanes(elastic(switch_allowed_until_step=5).plan(view(running)))["a"] == (2,)
    assert len(lanes(elastic(switch_allowed_until_step=6).plan(view(running)))["a"]) == 4


def test_ranks_that_hold_the_state_are_taken_first():
    plan = lanes(
        elastic().plan(view(trajectory("a", lane=(3,), holders=(3,)), trajectory("b", holders=(1,))))
    )
    assert 3 in plan["a"]


def test_a_rank_with_two_leases_gets_no_third():
    plan = elastic().plan(
        view(trajectory("a", lane=(0, 1, 2, 3), num_leases=2), leases=dict.fromkeys(range(4), 2))
    )
    assert plan == ()


def test_a_lease_is_as_long_as_a_pulse():
    (assignment,) = elastic(pulse_s=0.2).plan(view(trajectory("a", num_steps=100)))
    step_s = 1e-4 * 1024 / 4**0.9
    assert assignment.num_steps == int(0.2 / step_s)


def test_a_small_picture_is_never_spread_over_ranks_with_too_few_rows():
    tiny = trajectory("a", workload=Workload(tokens=8, conditions=2))
    assert len(lanes(elastic().plan(view(tiny)))["a"]) <= 2


trajectories = st.builds(
    trajectory,
    st.uuids().map(str),
    workload=st.builds(Workload, tokens=st.sampled_from(SIZES), conditions=st.integers(1, 2)),
    stage=st.sampled_from([Stage.ENCODE, Stage.DENOISE, Stage.DECODE]),
    step=st.integers(0, 19),
    arrival_s=st.floats(-10, 0),
    served_s=st.floats(-100, 0),
    deadline_s=st.none() | st.floats(0.01, 100),
    priority=st.integers(-2, 2),
    holders=st.sets(st.integers(0, 3), min_size=1).map(lambda ranks: tuple(sorted(ranks))),
    num_leases=st.integers(0, 2),
)


ranks = st.lists(st.tuples(st.integers(0, 2), st.floats(0, 5)), min_size=4, max_size=4)


@settings(max_examples=400, deadline=None)
@given(st.lists(trajectories, max_size=40, unique_by=lambda t: t.request_id), ranks)
def test_every_plan_is_sound_and_the_same_view_gives_the_same_plan(waiting, busy):
    """A starving request once filled two of the ranks that waited for a wide lane: it stood in two classes."""
    leases = {rank: num for rank, (num, _) in enumerate(busy)}
    free_s = {rank: seconds for rank, (_, seconds) in enumerate(busy)}
    looked_at = view(*waiting, leases=leases, free_s=free_s)
    plan = elastic().plan(looked_at)
    assert fault_of(looked_at, plan) is None
    assert plan == elastic().plan(looked_at)


@settings(max_examples=100, deadline=None)
@given(st.lists(trajectories, min_size=1, max_size=20, unique_by=lambda t: t.request_id))
def test_nothing_waits_while_all_ranks_idle(waiting):
    idle = [
        trajectory(t.request_id, workload=t.workload, stage=t.stage, deadline_s=t.deadline_s) for t in waiting
    ]
    assert elastic().plan(view(*idle))


def test_a_starving_request_that_fills_held_ranks_is_planned_once():
    """It stood in two classes, and filled two of the ranks that waited for a wide lane."""
    wide = trajectory(
        "wide", lane=(0, 1, 2, 3, 4, 5), holders=(0, 1, 2, 3, 4, 5), num_leases=1, deadline_s=0.5
    )
    starving = [
        trajectory(name, stage=Stage.ENCODE, served_s=-1000.0 + i, arrival_s=-1000.0, holders=())
        for i, name in enumerate(("first", "second"))
    ]
    held = view(wide, *starving, world=6, leases={0: 1, 1: 1}, free_s={0: 0.2, 1: 0.2})
    plan = elastic(6).plan(held)
    assert fault_of(held, plan) is None
    assert {"first", "second"} <= lanes(plan).keys()


@pytest.mark.parametrize(("holder", "fills"), [(0, False), (1, True)])
def test_a_rank_that_waits_for_its_lane_runs_nothing_whose_state_would_come_too_late(holder, fills):
    """Its lane began late by the move: 0.5 s, after which 8 steps take 0.8 s."""
    wide = trajectory("wide", lane=(0,), num_leases=1, ready_s=1.0, deadline_s=2.5)
    workload = Workload(tokens=1024, conditions=2, state_bytes=500_000_000)
    late = trajectory(
        "late", workload=workload, num_steps=8, deadline_s=0.0, lane=(holder,), holders=(holder,)
    )
    held = view(wide, late, world=2, leases={0: 1}, free_s={0: 1.0})
    assert lanes(elastic(2, pulse_s=0.9).plan(held)) == ({"late": (1,)} if fills else {})
