"""The bound: right where it can be reckoned by hand, and never passed."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy")

from epe.simulator.bounds import fluid_bound
from epe.simulator.metrics import measure
from epe.simulator.policies import policy_of
from epe.simulator.published import PUBLISHED
from epe.simulator.workloads import Deadlines, WorkloadSpec, generate
from tests.simulator.scenes import Chance, arrival, machine, run


def bound(arrivals, *, world: int, **fields: object) -> float:
    table = machine().table({a.workload for a in arrivals}, world_size=world)
    found = fluid_bound(arrivals, table, world_size=world, **fields)
    assert found.kind.startswith("fluid MILP")
    return found.slo_attainment


def test_a_request_that_takes_longer_than_its_deadline_even_alone_is_given_up():
    assert bound([arrival("a", deadline_s=10.9)], world=1) == 0
    assert bound([arrival("a", deadline_s=11.0)], world=1) == 1
    assert bound([arrival("a", deadline_s=7.0)], world=4) == 1
    assert bound([arrival("a", deadline_s=6.9)], world=4) == 0


def test_the_time_of_the_ranks_is_shared():
    # Each takes 11 s of the only rank.
    both = [arrival("a", deadline_s=21.9), arrival("b", deadline_s=21.9)]
    assert bound(both, world=1) == 0.5
    assert bound([arrival("a", deadline_s=22.0), arrival("b", deadline_s=22.0)], world=1) == 1
    assert bound(both, world=2) == 1


def test_requests_without_a_deadline_are_in_time():
    assert bound([arrival("a"), arrival("b", deadline_s=1.0)], world=1) == 0.5


def test_blocks_only_relax():
    arrivals = [arrival(f"r{i}", 3.0 * i, deadline_s=15.0) for i in range(12)]
    whole = bound(arrivals, world=2)
    assert whole < 1
    assert bound(arrivals, world=2, block=4) >= whole


def test_fewer_breakpoints_only_relax():
    arrivals = [arrival(f"r{i}", 3.0 * i, deadline_s=15.0) for i in range(12)]
    fine, coarse = (bound(arrivals, world=2, resolution=number) for number in (1000, 2))
    assert fine <= coarse < 1


def test_what_the_solver_prints_is_not_ours(capfd):
    bound([arrival(f"r{i}", 3.0 * i, deadline_s=15.0) for i in range(12)], world=2)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [1.1, 2.0])
def test_no_policy_passes_the_bound(seed: int, scale: float):
    costs = PUBLISHED["qwen-h20"]()
    spec = WorkloadSpec(
        name=("poisson", "gamma3")[seed % 2],
        load=1.0,
        num_requests=30,
        num_steps=5,
        deadlines=Deadlines(scale=scale),
    )
    arrivals = generate(spec, costs, world_size=4, seed=seed)
    table = costs.table({a.workload for a in arrivals}, world_size=4)
    most = fluid_bound(arrivals, table, world_size=4, time_limit_s=20.0).slo_attainment
    policies = [
        policy_of(name, widths=(1, 2, 4), world_size=4) for name in ("elastic", "static-sp1", "static-sp4")
    ]
    for policy in (*policies, Chance(seed)):
        outcome = run(policy, *arrivals, costs=costs)
        assert measure(outcome).slo_attainment <= most + 1e-9
