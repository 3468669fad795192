"""Steps are short while requests come that cannot wait for the end of a long one."""

from __future__ import annotations

import pytest

from epe.messages import Stage
from epe.planning.costs import Workload
from epe.planning.elastic import Elastic, ElasticSettings
from epe.planning.pace import Pace
from epe.planning.patience import Patience
from tests.planning.views import costs, trajectory, view

WIDTHS = (1, 2, 4, 8)
VIDEO = Workload(
    tokens=16384, conditions=2, state_bytes=100_000
)  # 1.64 s a step on one rank, 0.25 s on eight
QUICK = trajectory(
    "quick", stage=Stage.ENCODE, workload=Workload(tokens=256, conditions=2), num_steps=4, deadline_s=0.4
)


def lane_widths(*before) -> set[int]:
    """Of eight videos with hours to go, that wait for eight ranks."""
    videos = [trajectory(f"video{i}", workload=VIDEO, deadline_s=3600.0 + i) for i in range(8)]
    elastic = Elastic(ElasticSettings(widths=WIDTHS))
    for each in before:
        elastic.plan(view(each, world=8))
    return {len(each.ranks) for each in elastic.plan(view(*videos, world=8))}


def test_long_steps_run_narrow_while_nobody_is_in_a_hurry():
    assert lane_widths() == {1}


def test_a_quick_request_is_not_made_late_by_the_step_that_runs_when_it_comes():
    assert lane_widths(QUICK) == {8}


def test_late_work_fills_ranks_with_short_steps_too():
    late = [trajectory(f"late{i}", workload=VIDEO, deadline_s=0.5) for i in range(8)]
    elastic = Elastic(ElasticSettings(widths=WIDTHS))
    elastic.plan(view(QUICK, world=8))
    assert {len(each.ranks) for each in elastic.plan(view(*late, world=8))} == {8}


@pytest.mark.parametrize(("patience_s", "narrowest"), [(float("inf"), 1), (1.0, 2), (0.5, 4), (0.01, 8)])
def test_a_lane_is_as_wide_as_its_steps_must_be_short(patience_s, narrowest):
    assert Pace(costs(), VIDEO, widths=WIDTHS).narrowest(patience_s) == narrowest


def test_no_rank_is_wasted_for_short_steps():
    assert Pace(costs(speed_up=0.5), VIDEO, widths=WIDTHS).narrowest(0.01) == 1


def test_a_few_hasty_requests_of_many_count():
    patience = Patience()
    for number in range(20):
        spare_s = 1.0 if number % 5 == 0 else 60.0
        patience.note(arrived(f"r{number:02}", number, spare_s), best_s=2.0)
    assert patience.seconds == pytest.approx(1.0)


def test_a_single_hasty_request_among_many_does_not_count_for_ever():
    patience = Patience()
    for number in range(1 + Patience.REMEMBERED):
        patience.note(arrived(f"r{number:02}", number, 1.0 if number == 0 else 60.0), best_s=2.0)
    assert patience.seconds == pytest.approx(60.0)


def test_deadlines_that_nobody_could_meet_ask_for_nothing():
    patience = Patience()
    patience.note(arrived("hopeless", 0, -1.0), best_s=2.0)
    assert patience.seconds == float("inf")


def test_a_request_is_counted_once():
    patience = Patience()
    for _ in range(3):
        patience.note(arrived("a", 0, 1.0), best_s=2.0)
    for number in range(1, 11):
        patience.note(arrived("b", number, 60.0), best_s=2.0)
    assert patience.seconds == pytest.approx(60.0)


def arrived(name: str, at_s: float, spare_s: float):
    return trajectory(name, stage=Stage.ENCODE, arrival_s=at_s, deadline_s=at_s + 2.0 + spare_s)
