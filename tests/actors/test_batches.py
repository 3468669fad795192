"""Requests that are drawn as one batch, through the real planner and workers in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from epe.actors.admission import Limits
from epe.errors import Cancelled, NonFinite, OutOfMemory
from epe.families import family
from epe.messages import Lease, Stage
from epe.planning.calibration import Program, batch_sizes
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request


def batching(*, max_batch: int = 4, world_size: int = 1, **fields: object) -> Cluster:
    """A cluster that has measured its batches; one of n takes a quarter longer for each request after the first."""
    program = Program(
        family=family("zimage"),
        sizes=((256, 256, 1),),
        widths=tuple(range(1, world_size + 1)),
        world=world_size,
        num_steps=3,
        batches=batch_sizes(max_batch),
    )
    return Cluster(max_batch=max_batch, world_size=world_size, warmup=program, **fields)


def steps_of(cluster: Cluster, name: str = "q") -> list[Lease]:
    return [
        lease
        for _, _, lease in cluster.world.visits
        if lease.stage is Stage.DENOISE and lease.request.id.startswith(name)
    ]


def test_requests_of_one_size_share_their_steps_and_end_sooner_than_one_after_the_other():
    async def drawn(max_batch: int) -> tuple[float, Cluster]:
        cluster = batching(max_batch=max_batch)
        await cluster.start()
        begin_s = asyncio.get_running_loop().time()
        results = await cluster.draw(*(request(f"q{i}", steps=20) for i in range(4)))
        assert [result.data for result in results] == [b"png"] * 4
        taken_s = asyncio.get_running_loop().time() - begin_s
        await asyncio.sleep(1)
        cluster.check_clean()
        cluster.check_lanes()
        await cluster.stop()
        return taken_s, cluster

    together_s, cluster = run(drawn(4))
    alone_s, one_by_one = run(drawn(1))
    assert together_s < 0.6 * alone_s
    assert max(lease.batch_size for lease in steps_of(cluster)) == 4
    assert {lease.batch_size for lease in steps_of(one_by_one)} == {1}
    for name in ("q0", "q1", "q2", "q3"):
        assert sum(lease.num_steps for lease in steps_of(cluster, name)) == 20


def test_the_warm_up_measures_batches_on_every_width():
    async def main() -> None:
        cluster = batching(world_size=3, max_batch=3)
        await cluster.start()
        measured = {(k.width, k.batch) for k in cluster.planner.costs.measured if k.stage is Stage.DENOISE}
        assert measured == {(width, batch) for width in (1, 2, 3) for batch in (1, 2, 3)}
        cluster.check_clean()
        await cluster.stop()

    run(main())


def test_nothing_is_batched_that_was_not_measured():
    async def main() -> None:
        cluster = batching(max_batch=2)
        await cluster.start()
        await cluster.draw(*(request(f"q{i}", size=512, steps=6) for i in range(4)))
        assert {lease.batch_size for lease in steps_of(cluster)} == {1}
        await cluster.stop()

    run(main())


def test_requests_of_other_sizes_or_without_guidance_are_no_partners():
    async def main() -> None:
        cluster = batching()
        await cluster.start()
        await cluster.draw(request("q0"), request("q1", size=512))
        assert {lease.batch_size for lease in steps_of(cluster)} == {1}
        await cluster.stop()

    run(main())


def test_a_cancelled_request_leaves_its_batch_and_the_others_go_on():
    async def main() -> None:
        cluster = batching()
        desk = await cluster.start()
        handles = [await desk.submit(request(f"q{i}", steps=60)) for i in range(3)]
        await asyncio.sleep(0.6)
        assert any(lease.batch_size > 1 for lease in steps_of(cluster, "q1")), "they were at work together"
        handles[1].cancel()
        with pytest.raises(Cancelled, match="cancelled"):
            await handles[1].result()
        assert [(await handles[i].result()).data for i in (0, 2)] == [b"png"] * 2
        assert max(lease.first_step for lease in steps_of(cluster, "q1")) < 60
        await asyncio.sleep(1)
        cluster.check_clean()
        await cluster.stop()

    run(main())


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_request_that_fails_in_a_batch_fails_alone_and_is_told_its_own_reason(world_size: int):
    # Whose steps a batch has first.
    bad: list[str] = []

    def fault(lease: Lease, rank: int) -> NonFinite | None:
        if lease.batch_size > 1 and lease.first_step >= 5 and not bad:
            bad.append(lease.request.id)
        fails = lease.request.id in bad and lease.stage is Stage.DENOISE
        return NonFinite("values that are no numbers", stage=Stage.DENOISE, step=5) if fails else None

    async def main() -> None:
        cluster = batching(world_size=world_size, fault=fault)
        await cluster.start()
        names = [f"q{i}" for i in range(4)]
        results = dict(
            zip(names, await cluster.draw(*(request(name, steps=40) for name in names)), strict=True)
        )
        assert isinstance(results.pop(*bad), NonFinite)
        assert [result.data for result in results.values()] == [b"png"] * 3
        await asyncio.sleep(1)
        cluster.check_clean()
        await cluster.stop()

    run(main())


def test_a_batch_that_ran_out_of_memory_is_drawn_in_parts_and_not_tried_again():
    def fault(lease: Lease, rank: int) -> OutOfMemory | None:
        is_large = lease.batch_size > 2 and not lease.request.id.startswith("warmup")
        return OutOfMemory("no memory for so many", stage=Stage.DENOISE) if is_large else None

    tried: list[int] = []

    async def main() -> None:
        cluster = batching(fault=lambda lease, rank: tried.append(lease.batch_size) or fault(lease, rank))
        await cluster.start()
        cluster.planner.costs.memory.limit_bytes = 2**34
        tried.clear()
        for wave in range(3):
            results = await cluster.draw(*(request(f"q{wave}.{i}", steps=8) for i in range(4)))
            assert [result.data for result in results] == [b"png"] * 4
        assert tried.count(4) == 1
        assert max(lease.batch_size for lease in steps_of(cluster)) == 2
        await asyncio.sleep(1)
        cluster.check_clean()
        await cluster.stop()

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_to_batches_every_request_ends_and_nothing_is_left(seed: int):
    rng = random.Random(seed)
    faulty = {f"q{i}" for i in range(0, 30, 7)}

    def fault(lease: Lease, rank: int) -> NonFinite | None:
        bad = lease.request.id in faulty and lease.first_step > 2 and rank == lease.lane.ranks[-1]
        return NonFinite("no numbers", stage=Stage.DENOISE, step=3) if bad else None

    async def main() -> None:
        cluster = batching(world_size=3, fault=fault, seed=seed, limits=Limits(max_pending=100))
        desk = await cluster.start()

        async def one(index: int) -> bytes | str:
            await asyncio.sleep(rng.uniform(0, 3))
            handle = await desk.submit(request(f"q{index}", steps=rng.randint(1, 12)))
            if index % 5 == 1:
                await asyncio.sleep(rng.uniform(0, 0.5))
                handle.cancel()
            with contextlib.suppress(Cancelled):
                try:
                    return (await handle.result()).data
                except NonFinite:
                    return "non-finite"
            return "cancelled"

        ends = await asyncio.gather(*(one(index) for index in range(30)))
        for index, end in enumerate(ends):
            allowed = {b"png"}
            allowed |= {"cancelled"} if index % 5 == 1 else set()
            allowed |= {"non-finite"} if f"q{index}" in faulty else set()
            assert end in allowed, index
        await asyncio.sleep(1)
        cluster.check_clean()
        cluster.check_lanes()
        await cluster.stop()
        assert any(lease.batch_size > 1 for lease in steps_of(cluster))

    run(main())
