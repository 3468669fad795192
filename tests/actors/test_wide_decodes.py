"""How many ranks decode a picture, and what the planner learns of it."""

from __future__ import annotations

import pytest

from epe.families import family
from epe.messages import Lease, Stage
from epe.planning.calibration import Program
from epe.planning.view import Assignment, View
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, lease_seconds, request


class Generous:
    """All ranks for every task of one request after the other."""

    def plan(self, view: View) -> tuple[Assignment, ...]:
        ranks = tuple(rank.rank for rank in view.ranks)
        for trajectory in view.trajectories:
            if trajectory.num_leases == 0 and view.open_ranks.issuperset(ranks):
                steps = trajectory.num_steps - trajectory.step if trajectory.stage is Stage.DENOISE else 0
                return (Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=steps),)
        return ()


def widths_of(cluster: Cluster, stage: Stage) -> set[int]:
    return {lease.lane.width for _, _, lease in cluster.world.visits if lease.stage is stage}


@pytest.mark.parametrize(("decode_widths", "expected"), [((1,), 1), ((1, 2), 2), ((3,), 3), ((1, 2, 4), 4)])
def test_no_rank_is_held_for_a_decode_that_it_has_no_part_in(
    decode_widths: tuple[int, ...], expected: int
) -> None:
    async def main() -> None:
        cluster = Cluster(policy=Generous(), decode_widths=decode_widths)
        await cluster.start()
        await cluster.draw(*(request(f"q{index}") for index in range(3)))
        assert widths_of(cluster, Stage.DECODE) == {expected}
        assert widths_of(cluster, Stage.DENOISE) == {4}
        await cluster.stop()

    run(main())


def test_ranks_that_all_encode_the_same_teach_nothing_of_wider_encodes() -> None:
    async def main() -> None:
        cluster = Cluster(policy=Generous())
        await cluster.start()
        await cluster.draw(*(request(f"q{index}") for index in range(3)))
        assert widths_of(cluster, Stage.ENCODE) == {4}
        measured = cluster.planner.leasing.costs.measured
        assert {key.width for key in measured if key.stage is Stage.ENCODE} == {1}
        await cluster.stop()

    run(main())


@pytest.mark.parametrize("pays", [True, False])
def test_elastic_decodes_on_several_ranks_where_the_warm_up_has_found_that_it_pays(pays: bool) -> None:
    def seconds(lease: Lease) -> float:
        if lease.stage is not Stage.DECODE:
            return lease_seconds(lease)
        return 2.0 / lease.lane.width**0.9 if pays else 2.0 * lease.lane.width**0.1

    async def main() -> None:
        widths = (1, 2, 4)
        rounds = Program(
            family=family("zimage"),
            sizes=((256, 256, 1),),
            widths=widths,
            world=4,
            num_steps=3,
            decode_widths=widths,
        )
        cluster = Cluster(warmup=rounds, decode_widths=widths, seconds=seconds, jitter=0.0)
        await cluster.start()
        before = len(cluster.world.visits)
        await cluster.draw(request("alone"))
        (width,) = {
            lease.lane.width for _, _, lease in cluster.world.visits[before:] if lease.stage is Stage.DECODE
        }
        assert (width > 1) == pays
        await cluster.stop()

    run(main())
