"""When a request will end: exact while all that is ahead is played, and by how much not where it is only summed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epe.messages import Stage
from epe.planning.costs import CostTable, Workload
from epe.planning.forecast import play
from epe.planning.prediction import Ahead, Kind, kind_of, predicted_finish_s
from epe.planning.view import TrajectoryView
from epe.planning.work import left_s
from tests.planning.views import SIZES, trajectory, view

WIDTHS = (1, 2, 4)


def waits(name: str, tokens: int = 1024, num_steps: int = 20) -> TrajectoryView:
    workload = Workload(tokens=tokens, conditions=2)
    return trajectory(name, stage=Stage.ENCODE, workload=workload, num_steps=num_steps, holders=())


def seconds(costs: CostTable, kind: Kind) -> float:
    return left_s(costs, *kind, width=1)


def predicted(queue: list[TrajectoryView], *, played: int, world: int = 4) -> float:
    *before, last = queue
    ahead = Ahead(first=[*map(kind_of, before[:played])], others=Counter(map(kind_of, before[played:])))
    return predicted_finish_s(view(world=world), last, ahead=ahead, widths=WIDTHS)


def test_a_request_alone_has_the_width_at_which_it_ends_soonest():
    costs, alone = view().costs, waits("a")
    assert predicted([alone], played=0) == left_s(costs, *kind_of(alone), width=4)


def test_two_requests_have_half_of_the_ranks_each():
    costs, queue = view().costs, [waits("a"), waits("b")]
    assert predicted(queue, played=1) == left_s(costs, *kind_of(queue[1]), width=2)


def test_ranks_at_work_are_waited_for():
    busy = view(world=1, leases={0: 1}, free_s={0: 50.0})
    finish_s = predicted_finish_s(busy, waits("a"), ahead=Ahead(), widths=(1,))
    assert finish_s == 50.0 + seconds(busy.costs, kind_of(waits("a")))


queues = st.lists(st.tuples(st.sampled_from(SIZES), st.integers(1, 50)), min_size=9, max_size=80)


@settings(max_examples=100, deadline=None)
@given(queues, st.integers(0, 80))
def test_a_summed_queue_is_never_told_too_early_and_too_late_by_one_request_at_most(sizes, played):
    queue = [waits(f"q{i}", *size) for i, size in enumerate(sizes)]
    each_s = [seconds(view().costs, kind_of(each)) for each in queue]
    exact_s = play([0.0] * 4, [(1, its_s) for its_s in each_s])[-1]
    assert predicted(queue, played=len(queue)) == pytest.approx(exact_s)
    assert exact_s - 1e-6 <= predicted(queue, played=played) <= exact_s + max(each_s) + 1e-6


def test_work_that_is_shared_out_fills_first_the_ranks_that_are_free_first():
    kind = kind_of(waits("a"))
    late = view(world=2, leases={1: 1}, free_s={1: 1000.0})
    each_s = seconds(late.costs, kind)
    ahead = Ahead(others={kind: 3})
    assert predicted_finish_s(late, waits("b"), ahead=ahead, widths=(1,)) == pytest.approx(4 * each_s)
    assert each_s < 250
