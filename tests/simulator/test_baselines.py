"""Each baseline does what its paper says, seen on small worlds that can be checked by hand."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epe.errors import BadSetting
from epe.messages import Stage
from epe.planning.costs import Workload
from epe.planning.speeds import Speed
from epe.planning.view import RankView
from epe.simulator.baselines import BASELINES, BaselineSettings, class_of
from epe.simulator.baselines.mix import Segment, cheapest_mix
from epe.simulator.baselines.tetriserve import Choice, packed
from tests.planning.views import costs, trajectory, view

SMALL, LARGE = Workload(tokens=256, conditions=2), Workload(tokens=16384, conditions=2)
ONE_S = 20 * 1e-4 * 1024  # all steps of the default request on one rank


def planned(name: str, looked_at, **settings) -> dict[str, tuple[int, ...]]:
    values = {"world_size": len(looked_at.ranks), "widths": (1, 2, 4)} | settings
    plan = BASELINES[name](BaselineSettings(**values)).plan(looked_at)
    return {assignment.request_id: assignment.ranks for assignment in plan}


def ranks_until(*until_s: float) -> tuple[RankView, ...]:
    """Busy until then, each with one lease; 0 is idle."""
    return tuple(
        RankView(rank=rank, free_s=end_s, num_leases=int(end_s > 0)) for rank, end_s in enumerate(until_s)
    )


def test_widths_that_do_not_fit_into_the_world_are_refused():
    with pytest.raises(BadSetting, match=r"\[8\] are not between 1 and 4"):
        BaselineSettings(world_size=4, widths=(1, 2), tuned={"1024": 8})


def test_a_class_has_its_tuned_width_and_another_one_an_efficient_one():
    first = trajectory("tuned", arrival_s=-1.0)
    waiting = view(first, trajectory("other", workload=LARGE), costs=costs(speed_up=0.5))
    plan = planned("stage-static", waiting, tuned={class_of(Workload(tokens=1024, conditions=2)): 2})
    assert {name: len(ranks) for name, ranks in plan.items()} == {"tuned": 2}
    plan = planned("stage-static", waiting, tuned={"1024": 2}, min_efficiency=0.6)
    assert {name: len(ranks) for name, ranks in plan.items()} == {"tuned": 2, "other": 2}


def test_rssp_runs_a_request_on_one_lane_from_encode_to_decode():
    new = trajectory("a", stage=Stage.ENCODE, holders=())
    assert planned("rssp", view(new), tuned={"1024": 2}) == {"a": (0, 1)}
    running = trajectory("a", lane=(2, 3), holders=(2, 3))
    assert planned("rssp", view(running), tuned={"1024": 2}) == {"a": (2, 3)}


def test_rssp_lets_a_later_request_pass_only_if_that_delays_nobody():
    head = trajectory("head", stage=Stage.ENCODE, arrival_s=-2.0, holders=())
    short = trajectory("short", stage=Stage.ENCODE, workload=SMALL, num_steps=1, arrival_s=-1.0, holders=())
    long = trajectory("long", stage=Stage.ENCODE, workload=LARGE, arrival_s=-1.5, holders=())
    busy = view(head, long, short, ranks=ranks_until(0.0, 5.0, 5.0, 5.0))
    assert set(planned("rssp", busy, tuned={"1024": 4, "256": 1, "16384": 1})) == {"short"}


def test_stage_static_never_interrupts_a_denoise():
    settings = BaselineSettings(world_size=4, widths=(1, 2, 4))
    (whole,) = BASELINES["stage-static"](settings).plan(view(trajectory("a")))
    assert whole.num_steps == 20
    (pulse,) = BASELINES["edf-preempt"](settings).plan(view(trajectory("a")))
    assert pulse.num_steps == 1


def test_preemption_takes_the_ranks_of_a_request_with_a_later_deadline():
    running = trajectory("running", lane=(0, 1, 2, 3), holders=(0, 1, 2, 3), step=5, deadline_s=50.0)
    urgent = trajectory("urgent", deadline_s=1.0)
    assert set(planned("edf-preempt", view(running, urgent))) == {"urgent"}
    nearly = trajectory("nearly", step=19, deadline_s=90.0)
    assert set(planned("srtf-preempt", view(running, nearly))) == {"nearly"}


def test_late_requests_go_first_unless_the_option_puts_them_last():
    late, savable = trajectory("late", deadline_s=0.01), trajectory("savable", deadline_s=ONE_S * 0.35)
    assert set(planned("gfdit-edf", view(late, savable))) == {"late"}
    assert planned("gfdit-edf", view(late, savable), late_last=True) == {"savable": (0, 1, 2, 3)}


# --- DDiT ---


def test_ddit_starts_a_request_on_what_is_free_and_takes_nothing_away():
    running = trajectory("running", lane=(0, 1, 2), holders=(0, 1, 2), step=5, num_leases=1, ready_s=3.0)
    looked_at = view(running, trajectory("new"), ranks=ranks_until(3.0, 3.0, 3.0, 0.0))
    assert planned("ddit", looked_at) == {"new": (3,)}


def test_ddit_feeds_the_request_that_starves_most():
    def both(step: int) -> list:
        hungry = trajectory("hungry", lane=(0,), holders=(0,), step=step, workload=LARGE)
        small = trajectory("small", lane=(1,), holders=(1,), step=step, workload=SMALL)
        return [hungry, small]

    policy = BASELINES["ddit"](BaselineSettings(world_size=4, widths=(1, 2, 4)))
    policy.plan(view(*both(2), ranks=ranks_until(0.0, 0.0, 9.0, 9.0)))
    plan = policy.plan(view(*both(6), ranks=ranks_until(0.0, 0.0, 0.0, 9.0)))
    assert {a.request_id: len(a.ranks) for a in plan} == {"hungry": 2, "small": 1}


# --- GF-DiT ---


def test_best_fit_takes_the_narrowest_width_in_time_and_widens_with_what_is_left():
    tight = trajectory("tight", deadline_s=ONE_S * 0.6)
    relaxed = trajectory("relaxed", deadline_s=90.0)
    plan = planned("gfdit-edf", view(tight, relaxed))
    assert {name: len(ranks) for name, ranks in plan.items()} == {"tight": 2, "relaxed": 2}


def test_best_fit_sees_free_ranks_only():
    tight = trajectory("tight", workload=LARGE, deadline_s=20 * 1e-4 * 16384 * 0.4)
    looked_at = view(tight, ranks=ranks_until(0.0, 0.0, 0.1, 0.1))
    assert planned("gfdit-edf", looked_at) == {"tight": (0, 1)}
    assert planned("tetriserve", looked_at) == {}


# --- TetriServe ---


def speed(speed_up: float = 0.8) -> Speed:
    return Speed(costs(speed_up=speed_up), LARGE, widths=(1, 2, 4, 8))


@given(st.integers(1, 60), st.floats(0.1, 1.2), st.floats(0.3, 1.0))
def test_a_mix_ends_in_time_and_no_single_width_is_cheaper(num_steps, share, speed_up):
    its = speed(speed_up)
    left_s = share * num_steps * its.step_s(1)
    mix = cheapest_mix(its, num_steps, left_s)
    in_time = [width for width in its.ladder if num_steps * its.step_s(width) <= left_s]
    if not in_time:
        assert mix == ()
        return
    assert sum(segment.num_steps for segment in mix) == num_steps
    assert sum(s.num_steps * its.step_s(s.width) for s in mix) <= left_s * (1 + 1e-9)
    spent = sum(s.width * s.num_steps * its.step_s(s.width) for s in mix)
    assert spent <= min(w * num_steps * its.step_s(w) for w in in_time) * (1 + 1e-9)


def test_a_mix_uses_two_widths_where_one_would_waste():
    its = speed()
    between_s = 10 * (its.step_s(1) + its.step_s(2)) / 2 + 1e-6
    assert cheapest_mix(its, 10, between_s) == (Segment(1, 5), Segment(2, 5))


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.booleans(), st.booleans()), max_size=8),
    st.integers(0, 8),
)
def test_packing_the_narrowest_solves_the_knapsack_exactly(options, capacity):
    choices = [
        Choice(trajectory=trajectory(f"q{i}"), width=width, survives=survives, can_wait=can_wait)
        for i, (width, survives, can_wait) in enumerate(options)
    ]
    chosen = packed(choices, capacity)
    assert sum(choice.width for choice in chosen) <= capacity

    def survivors(runs: tuple[bool, ...]) -> int:
        pairs = list(zip(runs, choices, strict=True))
        if sum(choice.width for runs_now, choice in pairs if runs_now) > capacity:
            return -1
        return sum(choice.survives if runs_now else choice.can_wait for runs_now, choice in pairs)

    best = max(survivors(runs) for runs in product([False, True], repeat=len(choices)))
    names = {choice.trajectory.request_id for choice in chosen}
    assert survivors(tuple(choice.trajectory.request_id in names for choice in choices)) == best


def test_between_rounds_nothing_is_denoised_but_decodes_and_encodes_run():
    running = trajectory("running", lane=(0,), holders=(0,), step=5, num_leases=1, ready_s=3.0)
    waiting = trajectory("waiting", step=3, lane=(1,), holders=(1,))
    decode = trajectory("decode", stage=Stage.DECODE, step=20, lane=(2,), holders=(2,))
    looked_at = view(running, waiting, decode, ranks=ranks_until(3.0, 0.0, 0.0, 0.0))
    assert planned("tetriserve-rounds", looked_at) == {"decode": (2,)}
    assert set(planned("tetriserve-rounds", view(waiting, decode))) == {"waiting", "decode"}


def test_a_round_lasts_five_median_steps():
    settings = BaselineSettings(world_size=1, widths=(1,))
    (only,) = BASELINES["tetriserve-rounds"](settings).plan(view(trajectory("a"), world=1))
    assert only.num_steps == 5


def test_a_request_that_dies_by_waiting_gets_its_ranks_before_one_that_can_wait():
    dying = trajectory("dying", deadline_s=ONE_S / 4**0.9 + 0.02)
    can_wait = trajectory("can-wait", deadline_s=ONE_S / 4**0.9 + 0.015, step=5)
    for name in ("tetriserve", "tetriserve-rounds"):
        assert set(planned(name, view(dying, can_wait))) == {"dying"}


# --- pulses ---


def test_no_pulse_begins_before_all_ranks_idle():
    running = trajectory("running", lane=(0,), holders=(0,), step=5, num_leases=1, ready_s=3.0)
    new = trajectory("new", stage=Stage.ENCODE, holders=())
    assert planned("pulses", view(running, new, ranks=ranks_until(3.0, 0.0, 0.0, 0.0))) == {}


def test_within_a_pulse_a_lane_goes_on_to_its_next_stage():
    running = trajectory("running", lane=(0, 1), holders=(0, 1), step=5, num_leases=1, ready_s=3.0)
    encoded = trajectory("encoded", lane=(2, 3), holders=(2, 3), step=0)
    looked_at = view(running, encoded, ranks=ranks_until(3.0, 3.0, 0.0, 0.0))
    assert planned("pulses", looked_at) == {"encoded": (2, 3)}


def test_the_lanes_of_a_pulse_are_aligned_and_their_steps_balanced():
    settings = BaselineSettings(world_size=4, widths=(1, 2, 4))
    waiting = view(
        trajectory("a", step=1), trajectory("b", step=1, workload=Workload(tokens=4096, conditions=2))
    )
    plan = BASELINES["pulses"](settings).plan(waiting)
    assert {a.ranks for a in plan} <= {(0, 1), (2, 3), (0,), (1,), (2,), (3,), (0, 1, 2, 3)}
    steps = {a.request_id: a.num_steps for a in plan}
    if len(steps) == 2:
        assert steps["a"] > steps["b"] == 1


# --- GENSERVE ---


def test_a_video_narrows_so_that_pictures_end_in_time():
    flat = costs(speed_up=0.9)
    for width in (2, 4):
        key = next(k for k in flat.measured if (k.tokens, k.width, k.stage) == (256, width, Stage.DENOISE))
        flat.enter(key, 1.0)
    video = trajectory("video", workload=LARGE, step=1, lane=(0, 1, 2, 3), deadline_s=40.0)
    picture_s = 20 * 1e-4 * 256 + 0.05
    pictures = [trajectory(f"p{i}", workload=SMALL, deadline_s=picture_s) for i in range(2)]
    alone = planned("genserve", view(video, costs=flat))
    together = planned("genserve", view(video, *pictures, costs=flat))
    assert len(alone["video"]) == 4
    assert {name: len(ranks) for name, ranks in together.items()} == {"video": 2, "p0": 1, "p1": 1}


# --- heSRPT ---


def test_hesrpt_leaves_no_request_wider_than_its_share():
    plan = planned(
        "hesrpt", view(trajectory("short", step=10), trajectory("long"), costs=costs(speed_up=0.5))
    )
    assert {name: len(ranks) for name, ranks in plan.items()} == {"short": 2, "long": 1}
