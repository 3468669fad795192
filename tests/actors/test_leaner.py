"""A request that runs out of memory is tried once more where each rank needs less, and else fails alone."""

from __future__ import annotations

import asyncio

import pytest

from epe.errors import EpeError, NonFinite, OutOfMemory
from epe.messages import Lease, Stage
from epe.planning.static import StaticCp, StaticDp
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request
from tests.actors.test_recovery import calm
from tests.actors.test_service import Wanderer


def runs_out(lease: Lease, *, least: int, stage: Stage = Stage.DENOISE, from_step: int = 0) -> bool:
    """Whether `big` lacks memory: on lanes of less than `least` ranks."""
    is_big = lease.request.id.startswith("big") and lease.stage is stage
    return is_big and lease.first_step >= from_step and lease.lane.width < least


def no_memory(lease: Lease) -> OutOfMemory:
    return OutOfMemory(f"no memory for stage {lease.stage}", stage=lease.stage, step=lease.first_step)


@pytest.mark.parametrize("seed", range(10))
def test_steps_without_memory_are_taken_on_a_wider_lane_from_where_they_were(seed: int):
    failed: list[Lease] = []

    def fault(lease: Lease, rank: int) -> EpeError | None:
        if not runs_out(lease, least=3, from_step=4):
            return None
        failed.append(lease)
        return no_memory(lease)

    async def main() -> None:
        policy = Wanderer(seed) if seed % 2 else None
        cluster = Cluster(fault=fault, seed=seed, policy=policy, world_size=4, survives=seed % 3 == 0)
        await cluster.start()
        async with asyncio.timeout(600):
            results = await cluster.draw(
                *(request(f"q{i}", steps=6) for i in range(3)), request("big", steps=12)
            )
        *others, big = results
        assert [result.data for result in others] == [b"png"] * 3
        tried = sorted({lease.lane.width for lease in failed})
        if isinstance(big, OutOfMemory):
            assert tried == [1, 2], "both were tried, and no more"
        else:
            assert big.data == b"png"
            assert len(tried) <= 1
        await asyncio.sleep(1)
        cluster.check_clean()
        cluster.check_lanes()
        await cluster.stop()

    run(main())


def test_a_request_that_has_memory_nowhere_says_what_was_tried():
    async def main() -> None:
        cluster = Cluster(fault=lambda lease, rank: no_memory(lease) if runs_out(lease, least=9) else None)
        await cluster.start()
        # So many that it begins on a lane of one.
        big, *others = await cluster.draw(request("big"), *(request(f"q{i}") for i in range(3)))
        assert isinstance(big, OutOfMemory)
        assert "lanes of fewer ranks were tried before" in str(big)
        assert [good.data for good in others] == [b"png"] * 3
        await calm(cluster)

    run(main())


@pytest.mark.parametrize("stage", [Stage.ENCODE, Stage.DECODE])
def test_a_stage_without_a_leaner_form_fails_at_once_and_alone(stage: Stage):
    tried: list[int] = []

    def fault(lease: Lease, rank: int) -> EpeError | None:
        if not runs_out(lease, least=9, stage=stage):
            return None
        tried.append(lease.seq)
        return no_memory(lease)

    async def main() -> None:
        cluster = Cluster(fault=fault)
        await cluster.start()
        big, good = await cluster.draw(request("big"), request("q"))
        assert isinstance(big, OutOfMemory)
        assert f"stage {stage}" in str(big)
        assert len(tried) == 1
        assert good.data == b"png"
        await calm(cluster)

    run(main())


@pytest.mark.parametrize("fits_one", [True, False])
def test_a_decode_without_memory_on_several_ranks_is_tried_once_more_on_one(fits_one: bool):
    tried: list[int] = []

    def fault(lease: Lease, rank: int) -> EpeError | None:
        if not runs_out(lease, least=9, stage=Stage.DECODE):
            return None
        if rank == lease.lane.head:
            tried.append(lease.lane.width)
        return None if fits_one and lease.lane.width == 1 else no_memory(lease)

    async def main() -> None:
        policy = StaticCp(widths=(4,), pulse_s=0.05, pulse_steps=1)
        cluster = Cluster(fault=fault, decode_widths=(1, 2, 3, 4), policy=policy)
        await cluster.start()
        big, good = await cluster.draw(request("big"), request("q"))
        assert tried == [4, 1]
        if fits_one:
            assert big.data == b"png"
        else:
            assert isinstance(big, OutOfMemory)
            assert "a decode on several ranks was tried before" in str(big)
        assert good.data == b"png"
        await calm(cluster)

    run(main())


def test_a_policy_that_gives_one_width_alone_is_not_asked_for_another():
    async def main() -> None:
        policy = StaticDp(pulse_s=0.05, pulse_steps=1)
        cluster = Cluster(
            fault=lambda lease, rank: no_memory(lease) if runs_out(lease, least=2) else None, policy=policy
        )
        await cluster.start()
        big, good = await cluster.draw(request("big"), request("q"))
        assert isinstance(big, OutOfMemory)
        assert good.data == b"png"
        assert cluster.planner.leasing.deciding.policy is policy
        await calm(cluster)

    run(main())


def test_with_too_few_ranks_for_a_wider_lane_it_waits_and_the_others_and_their_policy_go_on():
    has_run_out: list[int] = []

    def fault(lease: Lease, rank: int) -> EpeError | None:
        if not runs_out(lease, least=4) or has_run_out:
            return None
        has_run_out.append(lease.lane.width)
        return no_memory(lease)

    async def main() -> None:
        cluster = Cluster(fault=fault, survives=True)
        await cluster.start()
        drawing = asyncio.ensure_future(
            cluster.draw(*(request(f"q{i}", steps=6) for i in range(6)), request("big", steps=12))
        )
        await asyncio.sleep(0.001)
        while not cluster.planner.trajectories["big"].is_leaner:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.001)
        for rank in (1, 2, 3):
            cluster.kill(rank)
        await asyncio.sleep(3)
        assert not drawing.done()
        assert cluster.planner.leasing.deciding.policy is cluster.elastic
        assert cluster.planner.leasing.deciding.status.fault == ""
        for rank in (1, 2, 3):
            await cluster.bring_back(rank)
        assert [result.data for result in await drawing] == [b"png"] * 7
        assert cluster.planner.leasing.deciding.status.fault == ""
        await calm(cluster)

    run(main(), limit_s=600)


def test_a_rank_that_fails_again_and_again_gets_no_more_leases_and_says_why_until_it_is_readmitted():
    is_sick = True

    async def main() -> None:
        nonlocal is_sick
        cluster = Cluster(
            world_size=2,
            policy=StaticDp(pulse_s=0.05, pulse_steps=1),
            fault=lambda lease, rank: (
                NonFinite("bad bits", stage=lease.stage) if is_sick and rank == 1 else None
            ),
        )
        desk = await cluster.start()
        results = await cluster.draw(*(request(f"q{i}", steps=2) for i in range(12)))
        bad = [result for result in results if isinstance(result, NonFinite)]
        assert len(bad) == 3
        sick = (await desk.status()).ranks[1]
        assert sick.state == "quarantined"
        assert "the last 3 requests failed on it, with: bad bits" in sick.reason
        is_sick = False
        well = (await desk.operate("readmit", 1)).ranks[1]
        assert (well.state, well.reason) == ("idle", "")
        results = await cluster.draw(*(request(f"r{i}", steps=2) for i in range(4)))
        assert [result.data for result in results] == [b"png"] * 4
        assert any(visit.ranks == (1,) for result in results for visit in result.account.visits)
        await calm(cluster)

    run(main())
