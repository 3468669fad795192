"""What a service's own cost file says beside seconds counts in the simulator too."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from epe.planning.cost_set import CostSet, MoveCost, TaskCost
from epe.simulator.engine import simulate
from epe.simulator.outcome import Outcome
from epe.simulator.policies import policy_of
from tests.simulator.scenes import LARGE, SMALL, Lanes, OneRank, arrival, machine


def run(costs: CostSet, policy: object, *, name: str = "mine") -> Outcome:
    request = arrival("a")
    table = costs.table([request.workload], world_size=4)
    return simulate([request], policy=policy, name=name, costs=table, world_size=4)


def test_a_move_takes_what_was_measured_between_its_ranks():
    moves = tuple(
        MoveCost(source=0, rank=rank, state_bytes=arrival("a").workload.state_bytes, seconds=seconds)
        for rank, seconds in ((1, 0.25), (2, 8.0))
    )
    for rank, seconds in ((1, 0.25), (2, 8.0), (3, 4.125)):
        # Encode for a second on rank 0, two steps of four seconds and a decode of two on another.
        outcome = run(machine(moves=moves), Lanes({"a": (rank,)}))
        assert outcome.records[0].finish_s == 1 + seconds + 2 * 4 + 2


def test_files_take_what_was_measured_for_their_size():
    request = arrival("a")
    finish = TaskCost(stage="finish", tokens=request.workload.tokens, seconds=0.75)
    costs = machine()
    plain = run(costs, OneRank()).records[0].finish_s
    later = run(replace(costs, tasks=(*costs.tasks, finish)), OneRank()).records[0].finish_s
    assert later == plain + 0.75


def test_no_lane_is_planned_that_has_not_the_memory():
    costs = machine()
    peaks = {1: 900, 2: 600, 4: 400}
    tasks = tuple(
        replace(each, peak_bytes=peaks[each.width]) if each.stage == "denoise" else each
        for each in costs.tasks
    )
    for limit, widths in ((1000, {1, 2, 4}), (700, {2, 4}), (500, {4})):
        tight = replace(costs, tasks=tasks, memory_bytes=limit)
        for name in ("elastic", "throughput", "latency", "slo", "fair"):
            policy = policy_of(name, widths=(1, 2, 4), world_size=4)
            work = run(tight, policy, name=name).work
            assert {len(each.ranks) for each in work if each.stage == "denoise"} <= widths, (limit, name)


@pytest.mark.parametrize("name", ["elastic", "throughput", "latency", "slo", "fair"])
@pytest.mark.parametrize("widths", [(2, 4), (4,)])
@pytest.mark.parametrize("deadline_s", [None, 30.0])
def test_requests_are_drawn_where_no_step_may_run_on_one_rank(name: str, widths: tuple, deadline_s):
    arrivals = [
        arrival(f"q{index}", 1.5 * index, size=(SMALL, LARGE)[index % 2], deadline_s=deadline_s)
        for index in range(8)
    ]
    policy = policy_of(name, widths=widths, world_size=4)
    costs = machine().table({each.workload for each in arrivals}, world_size=4)
    outcome = simulate(arrivals, policy=policy, name=name, costs=costs, world_size=4)
    assert [record.end for record in outcome.records] == ["finished"] * 8
    assert {len(each.ranks) for each in outcome.work if each.stage == "denoise"} <= set(widths)
