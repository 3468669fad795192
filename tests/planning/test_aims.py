"""The policies of one aim: throughput, latency, slo and fair, and what they share."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from epe.messages import Stage
from epe.planning.costs import Workload
from epe.planning.fair import Fair
from epe.planning.latency import Latency, hesrpt_shares
from epe.planning.pool import PoolSettings
from epe.planning.slo import Slo
from epe.planning.throughput import Throughput
from epe.planning.view import RankView
from epe.planning.work import cost_key
from epe.simulator.arrivals import Arrival, request_of
from epe.simulator.engine import simulate
from tests.planning.contract import costs as contract_costs
from tests.planning.views import costs, trajectory, view

SMALL, LARGE = Workload(tokens=256, conditions=2), Workload(tokens=16384, conditions=2)
SETTINGS = PoolSettings(widths=(1, 2, 4))
ONE_S = 20 * 1e-4 * 1024  # all steps of the default request on one rank


def lanes(plan) -> dict[str, tuple[int, ...]]:
    return {assignment.request_id: assignment.ranks for assignment in plan}


def widths(plan) -> dict[str, int]:
    return {name: len(ranks) for name, ranks in lanes(plan).items()}


def ranks_until(*until_s: float) -> tuple[RankView, ...]:
    """Busy until then, each with one lease; 0 is idle."""
    return tuple(
        RankView(rank=rank, free_s=end_s, num_leases=int(end_s > 0)) for rank, end_s in enumerate(until_s)
    )


# --- throughput ---


def test_throughput_gives_every_request_one_rank_while_others_wait():
    waiting = view(*(trajectory(f"q{i}") for i in range(6)))
    assert set(widths(Throughput(SETTINGS).plan(waiting)).values()) == {1}


def test_throughput_serves_least_work_first():
    large = [trajectory(f"large{i}", workload=LARGE, arrival_s=-5.0) for i in range(4)]
    assert "small" in lanes(Throughput(SETTINGS).plan(view(*large, trajectory("small", workload=SMALL))))


def test_throughput_widens_only_what_would_idle():
    assert widths(Throughput(SETTINGS).plan(view(trajectory("a"), trajectory("b")))) == {"a": 2, "b": 2}


def test_a_starved_request_goes_before_less_work():
    small = [trajectory(f"small{i}", workload=SMALL) for i in range(4)]
    starved = trajectory("starved", workload=LARGE, served_s=-100.0)
    for policy in (Throughput(SETTINGS), Latency(SETTINGS), Slo(SETTINGS), Fair(SETTINGS)):
        assert "starved" in lanes(policy.plan(view(*small, starved)))


# --- latency ---


def test_hesrpt_gives_the_least_work_the_largest_share_and_shares_out_everything():
    assert hesrpt_shares(2, 0.5) == pytest.approx([0.75, 0.25])
    shares = hesrpt_shares(7, 0.8)
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1.0)


def test_latency_gives_a_short_request_the_wider_lane():
    short, long = trajectory("short", step=10), trajectory("long", workload=LARGE)
    plan = widths(Latency(SETTINGS).plan(view(short, long, costs=costs(speed_up=0.6))))
    assert plan["short"] >= plan["long"]


def test_latency_lets_nobody_have_ranks_that_gain_nothing():
    plan = Latency(SETTINGS).plan(view(trajectory("a"), costs=costs(speed_up=-0.1)))
    assert widths(plan) == {"a": 1}


# --- slo ---


def test_slo_takes_the_narrowest_width_that_ends_in_time():
    waiting = [trajectory(f"q{i}", deadline_s=50.0) for i in range(4)]
    tight = trajectory("tight", deadline_s=ONE_S * 0.6)
    plan = widths(Slo(SETTINGS).plan(view(*waiting, tight)))
    assert plan == {"tight": 2, "q0": 1, "q1": 1}


def test_slo_asks_what_nine_of_ten_steps_take_whether_a_deadline_can_be_met():
    others = [trajectory(f"q{i}", deadline_s=90.0) for i in range(4)]
    nearly = trajectory("nearly", deadline_s=ONE_S * 1.2)
    found = {}
    for slow in (1.0, 1.5):
        noisy = costs()
        key = cost_key(nearly.workload, Stage.DENOISE, 1)
        for index in range(30):
            noisy.observe(key, noisy.measured[key] * (slow if index % 5 == 0 else 1.0))
        found[slow] = widths(Slo(SETTINGS).plan(view(nearly, *others, costs=noisy)))["nearly"]
    assert found == {1.0: 1, 1.5: 2}


def test_slo_puts_late_requests_last():
    late = trajectory("late", deadline_s=0.01)
    savable = [trajectory(f"q{i}", deadline_s=ONE_S * 0.6) for i in range(2)]
    assert set(lanes(Slo(SETTINGS).plan(view(late, *savable)))) == {"q0", "q1"}


def test_a_guard_widens_and_never_makes_hopeless():
    settings = PoolSettings(widths=(1, 2, 4), deadline_guard_s=1.0)
    others = [trajectory(f"q{i}", deadline_s=90.0) for i in range(4)]
    nearly = trajectory("nearly", deadline_s=ONE_S + 0.5)
    assert widths(Slo(SETTINGS).plan(view(nearly, *others)))["nearly"] == 1
    assert widths(Slo(settings).plan(view(nearly, *others)))["nearly"] == 2
    tight = trajectory("tight", deadline_s=ONE_S * 0.35)
    assert widths(Slo(settings).plan(view(tight, *others)))["tight"] == 4


# --- fair ---


def test_fair_gives_a_client_with_many_requests_no_more_than_one_with_a_single_one():
    many = [trajectory(f"many{i}", client_id="ada", arrival_s=-9.0) for i in range(8)]
    plan = widths(Fair(SETTINGS).plan(view(*many, trajectory("one", client_id="ben"))))
    assert plan["one"] == 2
    assert sum(plan.values()) == 4


def served(policy: Fair, name: str, client: str, **fields) -> None:
    """Let the policy see a request of a client at its beginning and then after so many steps."""
    for step in (0, 15):
        policy.plan(view(trajectory(name, client_id=client, step=step, **fields), world=1))


def test_fair_serves_the_client_that_has_had_less_although_it_came_later():
    policy = Fair(SETTINGS)
    first = {"client_id": "ada", "arrival_s": -9.0, "workload": LARGE}
    policy.plan(view(trajectory("a", **first), trajectory("b", client_id="ben"), world=1))
    after = view(trajectory("a", step=15, **first), trajectory("b", client_id="ben"), world=1)
    assert set(lanes(policy.plan(after))) == {"b"}


def test_a_client_that_comes_back_does_not_start_anew():
    policy = Fair(SETTINGS)
    both = [trajectory("a", client_id="ada", workload=LARGE), trajectory("b", client_id="ben")]
    policy.plan(view(*both, world=1))
    policy.plan(view(trajectory("a", client_id="ada", workload=LARGE, step=15), both[1], world=1))
    policy.plan(view(both[1], world=1))
    again = trajectory("again", client_id="ada", arrival_s=-99.0)
    assert set(lanes(policy.plan(view(again, both[1], world=1)))) == {"b"}


def test_a_client_that_idled_has_saved_nothing_up():
    policy = Fair(SETTINGS)
    served(policy, "b", "ben", workload=LARGE)
    late = view(
        trajectory("b", client_id="ben", workload=LARGE, step=15, arrival_s=-9.0),
        trajectory("a", client_id="ada"),
        world=1,
    )
    assert set(lanes(policy.plan(late))) == {"b"}


def test_priority_makes_service_count_for_less():
    policy = Fair(SETTINGS)
    fields = {"workload": LARGE, "arrival_s": -9.0}
    for step in (0, 10):
        plan = policy.plan(
            view(
                trajectory("vip", client_id="ada", priority=4, step=step, **fields),
                trajectory("b", client_id="ben", step=step and 5, **fields),
                world=1,
            )
        )
    assert set(lanes(plan)) == {"vip"}


def test_without_client_ids_every_request_counts_for_itself():
    plan = widths(Fair(SETTINGS).plan(view(*(trajectory(f"q{i}") for i in range(4)))))
    assert plan == {f"q{i}": 1 for i in range(4)}


def test_a_client_does_not_wait_for_the_queue_of_another():
    arrivals = [picture(f"ada-{i}", client_id="ada", arrival_s=0.0) for i in range(20)]
    arrivals.append(picture("ben-0", client_id="ben", arrival_s=0.01))
    table = contract_costs()
    outcome = simulate(arrivals, policy=Fair(SETTINGS), name="fair", costs=table, world_size=4)
    place = sorted(outcome.records, key=lambda record: record.finish_s)
    assert "ben-0" in {record.request_id for record in place[:4]}


def picture(name: str, *, client_id: str, arrival_s: float) -> Arrival:
    size = {"height": 512, "width": 512, "num_frames": 1, "num_steps": 10, "conditions": 1}
    request = replace(request_of(name, **size, deadline_s=None), client_id=client_id)
    workload = Workload(tokens=4096, conditions=1)
    return Arrival(
        arrival_s=arrival_s, request=request, workload=workload, size="any", single_s=1.0, best_s=1.0
    )


# --- what of a target starts now ---


def test_idle_ranks_wait_for_a_wide_lane_if_that_ends_sooner():
    tight = trajectory("tight", workload=LARGE, deadline_s=20 * 1e-4 * 16384 * 0.4)
    soon = view(tight, ranks=ranks_until(0.0, 0.0, 0.3, 0.3))
    assert Slo(SETTINGS).plan(soon) == ()


def test_idle_ranks_do_not_wait_longer_than_a_step_gains():
    tight = trajectory("tight", workload=LARGE, deadline_s=20 * 1e-4 * 16384 * 0.4)
    long = view(tight, ranks=ranks_until(0.0, 0.0, 9.0, 9.0))
    assert lanes(Slo(SETTINGS).plan(long)) == {"tight": (0, 1)}


def test_a_decode_runs_on_a_rank_that_waits():
    tight = trajectory("tight", workload=LARGE, deadline_s=20 * 1e-4 * 16384 * 0.4)
    decode = trajectory("decode", stage=Stage.DECODE, step=20, deadline_s=99.0)
    soon = view(tight, decode, ranks=ranks_until(0.0, 0.0, 0.3, 0.3))
    assert set(lanes(Slo(SETTINGS).plan(soon))) == {"decode"}


def test_a_request_that_keeps_its_width_keeps_its_ranks():
    running = trajectory("a", lane=(1, 3), holders=(1, 3), step=5)
    other = trajectory("b", lane=(0, 2), holders=(0, 2), step=5)
    plan = Latency(SETTINGS).plan(view(running, other, costs=costs(speed_up=0.5)))
    assert lanes(plan) == {"a": (1, 3), "b": (0, 2)}
