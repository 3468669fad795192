"""Policies that fail, the default one included: the service plans on, loses no request, and says who failed at what."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from epe.actors.deciding import Deciding
from epe.planning.elastic import Elastic, ElasticSettings
from epe.planning.view import Assignment, Policy, View
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request
from tests.planning.views import trajectory, view
from tests.simulator.scenes import Does


def raises(view: View) -> tuple[Assignment, ...]:
    raise KeyError("no such class")


def a_rank_twice(view: View) -> tuple[Assignment, ...]:
    return tuple(Assignment(request_id=each.request_id, ranks=(0, 0)) for each in view.trajectories)


def nothing(view: View) -> tuple[Assignment, ...]:
    return ()


FAULTS = {
    raises: "it raised KeyError: 'no such class'",
    a_rank_twice: "names a rank twice",
    nothing: "it gave no lease while all ranks idle and requests wait",
}


class FailsAtTimes:
    """The default policy, but for every third plan."""

    def __init__(self) -> None:
        self.elastic = Elastic(ElasticSettings(widths=(1, 2, 4)))
        self.num_plans = 0

    def plan(self, view: View) -> tuple[Assignment, ...]:
        self.num_plans += 1
        return raises(view) if self.num_plans % 3 == 0 else self.elastic.plan(view)


def draw(*, policy: Policy, fallback: Policy | None = None) -> Cluster:
    """Four requests through a whole service, none of which may be lost."""

    async def main() -> Cluster:
        cluster = Cluster(policy=policy)
        cluster.elastic = fallback or cluster.elastic
        await cluster.start()
        results = await cluster.draw(*(request(f"q{i}") for i in range(4)))
        assert [result.data for result in results] == [b"png"] * 4
        assert cluster.phases[-1][0] == "running"
        cluster.check_clean()
        await cluster.stop()
        return cluster

    return run(main())


def deciding(policy: Policy, fallback: Policy) -> Deciding:
    return Deciding(policy, fallback=fallback, widths=(1, 2, 4), max_batch=1)


def plan(decides: Deciding, seen: View) -> tuple[Assignment, ...]:
    return decides.plan(seen, known={each.request_id: each for each in seen.trajectories})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_policy_that_fails_is_replaced_and_no_request_is_lost(fault):
    status = draw(policy=Does(fault)).planner.leasing.deciding.status
    assert status.name == "Elastic"
    assert FAULTS[fault] in status.fault


@pytest.mark.parametrize("fault", FAULTS)
def test_a_default_policy_that_always_fails_does_not_end_the_planner(fault):
    status = draw(policy=Does(fault), fallback=Does(fault)).planner.leasing.deciding.status
    assert FAULTS[fault] in status.fault


def test_a_default_policy_that_fails_at_times_decides_again_afterwards():
    fallback = FailsAtTimes()
    cluster = draw(policy=fallback, fallback=fallback)
    assert cluster.planner.leasing.deciding.policy is fallback
    assert fallback.num_plans > 6


def test_where_the_default_policy_fails_too_the_last_resort_plans_and_the_status_names_who_failed():
    decides = deciding(Does(nothing), Does(raises))
    (assignment,) = plan(decides, view(trajectory("a"), world=4))
    assert (assignment.request_id, assignment.num_steps) == ("a", 1)
    assert decides.status.fault == "Does: it raised KeyError: 'no such class'"


def test_a_policy_may_give_nothing_while_something_runs_or_nobody_waits():
    decides = deciding(Does(nothing), Does(raises))
    assert plan(decides, view(trajectory("a"), world=2, leases={0: 1}, free_s={0: 1.0})) == ()
    assert plan(decides, view(world=2)) == ()
    assert decides.status.fault == ""


def test_a_policy_that_fails_at_every_event_does_not_flood_the_log():
    decides = deciding(Does(raises), Does(raises))
    with capture_logs() as lines:
        for _ in range(100):
            plan(decides, view(trajectory("a"), world=4))
    assert {line["event"] for line in lines} == {"policy.replaced"}
    assert [line["num_faults"] for line in lines] == [1, 2, 4, 8, 16, 32, 64]
