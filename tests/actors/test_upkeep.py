"""Ranks that are taken out and restarted in virtual time, while requests are drawn: none of them is lost."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable

import pytest

from epe.errors import Conflict, UnknownRank
from epe.messages import Lease, Stage
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request
from tests.actors.test_recovery import bring_back, calm
from tests.actors.test_service import Wanderer

# `SEEDS=2000 pytest tests/actors/test_upkeep.py` looks further.
NUM_SEEDS = int(os.environ.get("SEEDS", "10"))


async def state_of(cluster: Cluster, rank: int) -> str:
    return (await cluster.desk.status()).ranks[rank].state


async def until(cluster: Cluster, state: str, *, rank: int) -> None:
    async with asyncio.timeout(600):
        while await state_of(cluster, rank) != state:  # noqa: ASYNC110 (virtual time: it costs nothing)
            await asyncio.sleep(0.01)


async def until_restarted(cluster: Cluster) -> None:
    async with asyncio.timeout(3600):
        while (await cluster.desk.status()).restart is not None:  # noqa: ASYNC110 (virtual time: it costs nothing)
            await asyncio.sleep(0.05)


def leases_of(cluster: Cluster, request_id: str) -> list[Lease]:
    return [lease for _, _, lease in cluster.world.visits if lease.request.id == request_id]


def weights_at_work(cluster: Cluster) -> dict[str, list[str]]:
    """The weights with which the steps of each request were drawn that count: those since its last encode."""
    used: dict[str, list[str]] = {}
    for _, _, lease in cluster.world.visits:
        if lease.stage is Stage.ENCODE:
            used[lease.request.id] = []
        used[lease.request.id] += cluster.weights_used[lease.seq]
    return used


async def refused(work: Awaitable[object], *words: str) -> None:
    with pytest.raises(Conflict) as caught:
        await work
    for word in words:
        assert word in str(caught.value)


def test_a_cordoned_rank_gets_no_more_leases_until_it_is_readmitted():
    async def main() -> None:
        cluster = Cluster(world_size=2, survives=True)
        await cluster.start()
        await cluster.desk.operate("cordon", 1)
        await cluster.draw(*(request(f"q{i}") for i in range(4)))
        assert {lease.lane.ranks for _, _, lease in cluster.world.visits} == {(0,)}
        assert await state_of(cluster, 1) == "cordoned"
        await cluster.desk.operate("readmit", 1)
        await cluster.draw(*(request(f"r{i}") for i in range(4)))
        assert any(1 in lease.lane.ranks for _, _, lease in cluster.world.visits)
        await calm(cluster)

    run(main())


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_a_drained_rank_can_be_killed_and_no_step_is_drawn_twice(seed: int):
    async def main() -> None:
        rng = random.Random(seed)
        cluster = Cluster(seed=seed, survives=True, policy=Wanderer(seed) if seed % 2 else None)
        await cluster.start()
        wanted = [request(f"q{i}", size=rng.choice((256, 512)), steps=rng.randint(1, 12)) for i in range(8)]
        work = asyncio.ensure_future(cluster.draw(*wanted, gap_s=0.05))
        await asyncio.sleep(rng.expovariate(3))
        rank = rng.randrange(4)
        await cluster.desk.operate("drain", rank)
        await until(cluster, "drained", rank=rank)
        cluster.kill(rank)
        results = await work
        assert [result.data for result in results] == [b"png"] * 8
        assert sum(result.account.num_recoveries for result in results) == 0
        assert sum(result.account.num_repeated_steps for result in results) == 0
        await cluster.bring_back(rank)
        await calm(cluster)

    run(main())


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_all_ranks_are_restarted_amid_hundreds_of_requests_and_each_of_them_ends_once(seed: int):
    """One after the other; with an accident of another rank on the way in every third world."""

    async def main() -> None:
        rng = random.Random(seed)
        cluster = Cluster(seed=seed, survives=True, policy=Wanderer(seed) if seed % 2 else None)
        await cluster.start()
        wanted = [request(f"q{i}", size=rng.choice((256, 512)), steps=rng.randint(1, 8)) for i in range(100)]
        work = asyncio.ensure_future(cluster.draw(*wanted, gap_s=0.03))
        await asyncio.sleep(rng.uniform(0.1, 1.5))
        await cluster.desk.restart_ranks(weights="")
        if seed % 3 == 0:
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            victim = rng.randrange(4)
            if not cluster.planner.roster.is_gone(victim) and cluster.network._nodes[f"r{victim}"].alive:
                cluster.kill(victim)
                await bring_back(cluster, victim, 0.4)
        await until_restarted(cluster)
        results = await work
        assert [getattr(result, "data", result) for result in results] == [b"png"] * 100
        assert cluster.planner.endings.num_finished == 100
        if seed % 3:
            assert cluster.most_away == 1
            assert sorted(cluster.restarted) == [0, 1, 2, 3]
            assert sum(result.account.num_repeated_steps for result in results) == 0
        await calm(cluster)

    run(main())


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_no_picture_is_drawn_with_old_and_new_weights(world_size: int, seed: int):
    async def main() -> None:
        rng = random.Random(seed)
        policy = Wanderer(seed) if seed % 2 and world_size == 4 else None
        cluster = Cluster(world_size=world_size, seed=seed, survives=True, policy=policy)
        await cluster.start()
        wanted = [request(f"q{i}", steps=rng.randint(1, 12)) for i in range(20)]
        work = asyncio.ensure_future(cluster.draw(*wanted, gap_s=0.05))
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        cluster.weights = "new"
        await cluster.desk.restart_ranks(weights="new")
        if seed % 3 == 0:  # one that has old weights dies, and comes back with new ones
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            victim = rng.randrange(world_size)
            if not cluster.planner.roster.is_gone(victim) and cluster.network._nodes[f"r{victim}"].alive:
                cluster.kill(victim)
                await bring_back(cluster, victim, 0.4)
        await until_restarted(cluster)
        results = await work
        assert [getattr(result, "data", result) for result in results] == [b"png"] * 20
        used = weights_at_work(cluster)
        assert {len(set(each)) for each in used.values()} == {1}, used
        assert cluster.planner.roster.kinds == {"new"}
        (after,) = await cluster.draw(request("after"))
        assert after.data == b"png"
        await calm(cluster)

    run(main())


def test_a_request_that_only_all_ranks_together_can_draw_does_not_keep_them_from_new_weights():
    async def main() -> None:
        cluster = Cluster(survives=True)
        await cluster.start()
        handle = await cluster.desk.submit(request("wide", size=512, steps=40))
        cluster.planner.trajectories["wide"].bar((1, 2, 3))
        await asyncio.sleep(0.5)
        cluster.weights = "new"
        await cluster.desk.restart_ranks(weights="new")
        await until_restarted(cluster)
        assert (await handle.result()).account.num_recoveries == 1
        assert set(weights_at_work(cluster)["wide"]) == {"new"}
        await calm(cluster)

    run(main())


def test_requests_wait_for_the_last_rank_and_health_says_so():
    async def main() -> None:
        cluster = Cluster(world_size=2, survives=True)
        await cluster.start()
        work = asyncio.ensure_future(cluster.draw(*(request(f"q{i}", steps=12) for i in range(4))))
        await asyncio.sleep(0.3)
        for rank in range(2):
            await cluster.desk.operate("drain", rank)
            await until(cluster, "drained", rank=rank)
        await asyncio.sleep(5)
        status = await cluster.desk.status()
        assert not work.done()
        assert status.phase == "running"
        assert status.reason.endswith("requests wait for ranks: rank 0 is drained, rank 1 is drained")
        await cluster.desk.operate("readmit", 0)
        results = await work
        assert [result.data for result in results] == [b"png"] * 4
        assert (await cluster.desk.status()).reason == ""
        await calm(cluster)

    run(main())


def test_without_checkpoints_a_state_is_fetched_elsewhere_before_its_rank_is_drained():
    async def main() -> None:
        cluster = Cluster(world_size=2, survives=True, checkpoints=False)
        await cluster.start()
        work = asyncio.ensure_future(cluster.draw(*(request(f"q{i}", steps=20) for i in range(3))))
        await asyncio.sleep(0.4)
        await cluster.desk.operate("drain", 1)
        await until(cluster, "drained", rank=1)
        cluster.kill(1)
        results = await work
        assert [result.account.num_recoveries for result in results] == [0, 0, 0]
        await cluster.bring_back(1)
        await calm(cluster)

    run(main())


def test_a_state_that_nobody_else_can_take_is_named_and_keeps_its_rank_from_being_drained():
    async def main() -> None:
        cluster = Cluster(world_size=1, survives=True, checkpoints=False)
        await cluster.start()
        work = asyncio.ensure_future(cluster.draw(request("a", size=512, steps=20)))
        await asyncio.sleep(0.5)
        await cluster.desk.operate("drain", 0)
        await asyncio.sleep(30)
        (rank,) = (await cluster.desk.status()).ranks
        assert (rank.state, rank.reason) == ("draining", "the state of 1 request is only there")
        await cluster.desk.operate("readmit", 0)
        (result,) = await work
        assert result.account.num_recoveries == 0
        await calm(cluster)

    run(main())


def test_what_cannot_be_is_refused_with_a_sentence():
    async def main() -> None:
        cluster = Cluster(world_size=2, survives=True)
        await cluster.start()
        desk = cluster.desk
        with pytest.raises(UnknownRank, match="rank 2 is none of this service; its ranks are 0 to 1"):
            await desk.operate("drain", 2)
        await desk.operate("cordon", 1)
        await refused(desk.restart_ranks(weights=""), "rank 1 is cordoned", "readmit")
        await desk.operate("readmit", 1)
        cluster.kill(1)
        await until(cluster, "lost", rank=1)
        await refused(desk.operate("readmit", 1), "rank 1 is lost", "comes back by itself")
        await refused(desk.restart_ranks(weights=""), "rank 1 is lost", "wait")
        await cluster.bring_back(1)
        await until(cluster, "idle", rank=1)
        await desk.restart_ranks(weights="")
        await refused(desk.restart_ranks(weights=""), "one after the other", "wait")
        await refused(desk.operate("cordon", 0), "one after the other")
        await until_restarted(cluster)
        await calm(cluster)

    run(main())


def test_where_nobody_starts_ranks_again_they_are_not_restarted():
    async def main() -> None:
        cluster = Cluster(world_size=2)
        await cluster.start()
        await refused(cluster.desk.restart_ranks(weights=""), "nobody starts the ranks")
        await calm(cluster)

    run(main())


def test_a_restart_ends_with_the_service():
    async def main() -> None:
        cluster = Cluster(world_size=2, survives=True)
        await cluster.start()
        work = asyncio.ensure_future(cluster.draw(*(request(f"q{i}", steps=12) for i in range(4))))
        await asyncio.sleep(0.2)
        await cluster.desk.restart_ranks(weights="")
        await cluster.desk.drain(reason="by a signal", timeout_s=600)
        assert [result.data for result in await work] == [b"png"] * 4
        assert (await cluster.desk.status()).restart is None
        await calm(cluster)

    run(main())
