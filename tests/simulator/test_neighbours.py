"""What users complained about elsewhere: a small picture that waits behind a long video."""

from __future__ import annotations

from msgspec.structs import replace

from epe.simulator.engine import simulate
from epe.simulator.metrics import percentile
from epe.simulator.outcome import Outcome
from epe.simulator.policies import policy_of
from epe.simulator.published import PUBLISHED
from epe.simulator.workloads import Deadlines, WorkloadSpec, generate

COSTS = PUBLISHED["four-models"]()


def video_and_pictures(policy: str) -> Outcome:
    """One video just before twenty pictures that come at random while it is drawn."""
    rule = Deadlines(kind="none")
    small = WorkloadSpec(mix="flux2-klein=1", num_requests=20, load=0.05, deadlines=rule)
    large = WorkloadSpec(mix="wan=1", num_requests=2, deadlines=rule)
    pictures = generate(small, COSTS, world_size=8, seed=1)
    video = generate(large, COSTS, world_size=8, seed=2)[0]
    arrivals = (replace(video, arrival_s=pictures[0].arrival_s - 0.1), *pictures)
    return simulate(
        arrivals,
        policy=policy_of(policy, widths=COSTS.widths(8), world_size=8),
        name=policy,
        costs=COSTS.table({arrival.workload for arrival in arrivals}, world_size=8),
        world_size=8,
    )


def slowness(outcome: Outcome) -> float:
    """95th percentile of the pictures' latency, in latencies alone on one rank."""
    pictures = [record for record in outcome.records if record.size == "flux2-klein"]
    assert len(pictures) == 20
    return percentile([record.latency_s / record.single_s for record in pictures], 0.95)


def test_pictures_do_not_wait_behind_a_video():
    outcome = video_and_pictures("elastic")
    assert {record.end for record in outcome.records} == {"finished"}
    assert slowness(outcome) <= 3


def test_behind_a_video_that_keeps_all_ranks_they_would():
    assert slowness(video_and_pictures("static-sp8")) > 3
