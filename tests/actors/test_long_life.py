"""What a leader keeps after hundreds of requests, cancels and deaths of ranks, in hours of virtual time: nothing more
than after the first ones."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter

from epe.cache import CacheRules, resolve
from epe.errors import EpeError
from epe.messages import FreeCache, Request, TaylorSeer, TeaCache
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request
from tests.cache.profiles import made_up

NUM_REQUESTS = 60
NUM_DEATHS = 8
STEPS = 12
STRATEGIES = (
    None,
    FreeCache(fresh_budget=6),
    TaylorSeer(max_order=2),
    TeaCache(threshold=0.3, coefficients=(1.0, 0.0)),
)


def some_request(name: str, rng: random.Random) -> Request:
    strategy = rng.choice(STRATEGIES)
    reuse = strategy and resolve(strategy, CacheRules(profile=made_up()), num_steps=STEPS)
    return request(name, size=rng.choice((256, 512)), steps=STEPS, reuse=reuse)


async def one(cluster: Cluster, name: str) -> None:
    """A client, who leaves now and then."""
    rng = random.Random(name)
    await asyncio.sleep(rng.uniform(0, 1800))
    handle = await cluster.desk.submit(some_request(name, rng))
    leaving = (
        asyncio.get_running_loop().call_later(rng.uniform(0, 2), handle.cancel)
        if rng.random() < 0.3
        else None
    )
    try:
        await handle.result()
    except EpeError:
        pass
    finally:
        if leaving is not None:
            leaving.cancel()


async def kill_now_and_then(cluster: Cluster, rng: random.Random) -> None:
    for _ in range(NUM_DEATHS):
        await asyncio.sleep(rng.uniform(20, 100))
        rank = rng.randrange(cluster.world_size)
        cluster.kill(rank)
        await asyncio.sleep(1)
        await cluster.bring_back(rank)


async def live_for_a_while(cluster: Cluster, part: int) -> Counter[str]:
    """Half an hour of requests; the objects that are left, by type, when all is quiet."""
    clients = [one(cluster, f"{part}-{index}") for index in range(NUM_REQUESTS)]
    await asyncio.gather(*clients, kill_now_and_then(cluster, random.Random(part)))
    await asyncio.sleep(120)
    cluster.check_clean()
    # What the simulated ranks note down is not the leader's.
    cluster.world.visits.clear()
    cluster.world.meetings.clear()
    cluster.weights_used.clear()
    gc.collect()
    return Counter(type(each).__qualname__ for each in gc.get_objects())


def test_a_leader_keeps_no_more_after_hundreds_of_requests_and_deaths_than_after_the_first():
    async def main() -> None:
        cluster = Cluster(survives=True)
        await cluster.start()
        await live_for_a_while(cluster, 0)
        before = await live_for_a_while(cluster, 1)
        for part in (2, 3):
            after = await live_for_a_while(cluster, part)
        more = (
            after - before
        )  # some tasks that were not met before have costs of their own now, each death would leave two
        assert more.total() < 3 * NUM_DEATHS, f"after {2 * NUM_REQUESTS} requests: {more.most_common(8)}"
        await cluster.stop()

    run(main(), limit_s=20_000)
