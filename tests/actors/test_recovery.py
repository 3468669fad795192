"""Ranks die and come back in virtual time: what that costs the requests, and that nothing of them is lost."""

from __future__ import annotations

import asyncio
import itertools
import os
import random

import pytest

from epe.actors.desk import Result
from epe.families import family
from epe.messages import LeaseDone, Stage
from epe.planning.calibration import Program
from epe.planning.static import StaticCp, StaticDp
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request
from tests.actors.test_service import Wanderer

# `SEEDS=3000 pytest tests/actors/test_recovery.py` looks further.
NUM_SEEDS = int(os.environ.get("SEEDS", "200"))
PULSE_STEPS = 3


async def calm(cluster: Cluster) -> None:
    await asyncio.sleep(1)
    cluster.check_clean()
    cluster.check_lanes()
    await cluster.stop()


def test_a_killed_rank_costs_its_request_one_pulse_and_its_neighbour_nothing():
    async def main() -> None:
        cluster = Cluster(world_size=2, survives=True)
        await cluster.start()
        work = asyncio.ensure_future(cluster.draw(*(request(f"q{i}", steps=10) for i in range(4))))
        await asyncio.sleep(0.5)
        cluster.kill(1)
        results = await work
        assert [result.data for result in results] == [b"png"] * 4
        assert any(result.account.num_recoveries for result in results)
        assert max(result.account.num_repeated_steps for result in results) <= 1, (
            "steps of 51 ms, pulses of 50"
        )
        await calm(cluster)

    run(main())


def kill_when_heard(cluster: Cluster, rng: random.Random) -> list[asyncio.Future[None]]:
    """Have ranks die at the moment at which the planner hears that a lease has run on them, and come back."""
    receive, returning = cluster.planner.receive, []

    async def heard(message: object) -> object:
        answer = await receive(message)
        if isinstance(message, LeaseDone) and rng.random() < 0.15:
            cluster.kill(message.rank)
            returning.append(asyncio.ensure_future(bring_back(cluster, message.rank, 0.2)))
        return answer

    cluster.planner.receive = heard
    return returning


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("seed", range(NUM_SEEDS // 8))
def test_a_death_costs_a_request_the_steps_of_one_lease_and_no_more(seed: int, heard: bool):
    """On lanes of one rank, where nobody else holds the state: also at the moment between a lease and the next."""

    async def main() -> None:
        rng = random.Random(seed)
        cluster = Cluster(
            world_size=2, seed=seed, survives=True, policy=StaticDp(pulse_s=0.0, pulse_steps=PULSE_STEPS)
        )
        await cluster.start()
        deaths = kill_when_heard(cluster, rng) if heard else []
        work = asyncio.ensure_future(cluster.draw(*(request(f"q{i}", steps=15) for i in range(3))))
        if not heard:
            await asyncio.sleep(rng.uniform(0, 1.5))
            cluster.kill(0)
            deaths.append(asyncio.ensure_future(bring_back(cluster, 0, 0.2)))
        results = [each for each in await work if isinstance(each, Result)]  # Some kill too many ranks.
        await asyncio.gather(*deaths)
        for account in (result.account for result in results):
            assert account.num_repeated_steps <= PULSE_STEPS * account.num_recoveries
            drawn = sum(
                lease.num_steps
                for _, _, lease in cluster.world.visits
                if lease.request.id == account.request_id and lease.stage is Stage.DENOISE
            )
            assert drawn - 15 <= PULSE_STEPS * account.num_recoveries
        await calm(cluster)

    run(main())


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_whatever_dies_whenever_every_request_ends_once_with_its_picture(seed: int):
    """Kills at any moment, several at once, again while ranks come back; each rank comes back after a while."""

    async def main() -> None:
        rng = random.Random(seed)
        policy = Wanderer(seed) if seed % 2 else None
        cluster = Cluster(seed=seed, survives=True, policy=policy, checkpoints=seed % 3 > 0)
        await cluster.start()
        wanted = [request(f"q{i}", size=rng.choice((256, 512)), steps=rng.randint(1, 12)) for i in range(8)]
        work = asyncio.ensure_future(cluster.draw(*wanted, gap_s=0.05))
        returning = []
        for _ in range(rng.randint(1, 5)):
            await asyncio.sleep(rng.expovariate(5))
            victims = rng.sample(range(4), rng.choice((1, 1, 1, 2, 4)))
            for rank in victims:
                if not cluster.planner.roster.is_gone(rank) and cluster.network._nodes[f"r{rank}"].alive:
                    cluster.kill(rank)
                    returning.append(asyncio.ensure_future(bring_back(cluster, rank, rng.uniform(0.2, 1.0))))
        async with asyncio.timeout(600):
            results = await work
        given_up = [r for r in results if isinstance(r, Exception) and "given up" in str(r)]
        assert len(given_up) + sum(getattr(r, "data", None) == b"png" for r in results) == 8, results
        await asyncio.gather(*returning)
        await asyncio.sleep(1)
        assert cluster.planner.roster.available == {0, 1, 2, 3}
        (after,) = await cluster.draw(request("after", steps=3))
        assert after.data == b"png"
        await calm(cluster)

    run(main())


@pytest.mark.parametrize("seed", range(8))
def test_ranks_that_die_in_the_warm_up_delay_it_and_no_more(seed: int):
    async def main() -> None:
        rounds = Program(
            family=family("zimage"), sizes=((256, 256, 1),), widths=(1, 2, 4), world=4, num_steps=3
        )
        cluster = Cluster(seed=seed, warmup=rounds, survives=True)
        starting = asyncio.ensure_future(cluster.start())
        await asyncio.sleep(0.02 + 0.04 * seed)
        assert cluster.phases[-1][0] == "warming"
        victims = random.Random(seed).sample(range(4), 1 + seed % 2)
        for rank in victims:
            cluster.kill(rank)
        for rank in victims:
            await bring_back(cluster, rank, 0.3)
        async with asyncio.timeout(600):
            await starting
        (result,) = await cluster.draw(request("a"))
        assert result.data == b"png"
        await calm(cluster)

    run(main())


def test_a_lane_that_goes_down_at_once_counts_once_against_its_request():
    async def main() -> None:
        cluster = Cluster(survives=True, policy=StaticCp(widths=(4,), pulse_s=0.05, pulse_steps=1))
        await cluster.start()
        drawing = asyncio.ensure_future(cluster.draw(request("a", size=512, steps=12)))
        for _ in range(2):
            while len(cluster.planner.ledger.at_work()) < 4:  # noqa: ASYNC110 (virtual time)
                await asyncio.sleep(0.001)
            for rank in range(4):
                cluster.kill(rank)
            for rank in range(4):
                await bring_back(cluster, rank, 0.1)
            await asyncio.sleep(0.1)
        (result,) = await drawing
        assert result.data == b"png"
        await calm(cluster)

    run(main(), limit_s=600)


async def bring_back(cluster: Cluster, rank: int, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    await cluster.bring_back(rank)


def test_steps_of_a_request_are_drawn_in_order_from_where_it_was_when_its_rank_died():
    async def main() -> None:
        cluster = Cluster(world_size=1, survives=True)
        await cluster.start()
        work = asyncio.ensure_future(cluster.draw(request("a", size=512, steps=30)))
        await asyncio.sleep(1.5)
        cluster.kill(0)
        await asyncio.sleep(1)
        assert not work.done()
        await cluster.bring_back(0)
        (result,) = await work
        steps = [lease for _, _, lease in cluster.world.visits if lease.stage is Stage.DENOISE]
        for before, after in itertools.pairwise(steps):
            assert after.first_step == before.first_step + before.num_steps
        assert result.account.num_recoveries == 1
        assert [lease.stage for _, _, lease in cluster.world.visits].count(Stage.ENCODE) == 1
        await calm(cluster)

    run(main())
