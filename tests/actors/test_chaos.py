"""Everything at once in virtual time: cancels, deaths, hangs, errors and want of memory at seeded moments.

`SEEDS=3000 pytest tests/actors/test_chaos.py` looks further; a failure names its seed, which repeats it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest

from epe.errors import Cancelled, EpeError, Expired, Gone, NonFinite, OutOfMemory
from epe.messages import Lease
from epe.planning.view import MAX_LEASES
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request
from tests.actors.test_recovery import bring_back
from tests.actors.test_service import Wanderer

NUM_SEEDS = int(os.environ.get("SEEDS", "60"))
NUM_REQUESTS = 12


class Trouble:
    """What goes wrong with leases, drawn once for each lease and rank."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{seed}/trouble")
        self.hung: set[tuple[int, int]] = set()
        # Requests that something has struck; not all of them fail for that.
        self.struck: set[str] = set()

    def fault(self, lease: Lease, rank: int) -> EpeError | None:
        dice = self.rng.random()
        if dice < 0.004:
            self.struck.add(lease.request.id)
            return NonFinite("no numbers", stage=lease.stage, step=lease.first_step)
        if dice < 0.012:
            self.struck.add(lease.request.id)
            return OutOfMemory("no memory", stage=lease.stage, step=lease.first_step)
        return None

    def hangs(self, lease: Lease, rank: int) -> bool:
        if len(self.hung) < 3 and self.rng.random() < 0.01:
            self.hung.add((lease.seq, rank))
        return (lease.seq, rank) in self.hung


def check_books(cluster: Cluster) -> None:
    """What holds between any two events (design, section 5)."""
    planner = cluster.planner
    running = planner.ledger.in_order()
    for lease in (each.lease for each in running):
        assert lease.request.id in planner.trajectories, f"lease {lease.seq} is nobody's"
        assert lease.epoch == planner.ledger.epoch
    waiting = [rank for each in running if each.lease.batch_place == 0 for rank in each.waiting]
    assert all(count <= MAX_LEASES for count in Counter(waiting).values()), waiting
    assert not [rank for rank in waiting if planner.roster.is_gone(rank)], "a lost rank has a lease"
    for trajectory in planner.trajectories.values():
        for before, after in zip(list(trajectory.leases), list(trajectory.leases)[1:], strict=False):
            assert before.lease.seq < after.lease.seq


def watch_books(cluster: Cluster) -> None:
    """Check the books after every event that reaches the planner."""
    receive = cluster.planner.receive

    async def watched(message: object) -> object:
        answer = await receive(message)
        check_books(cluster)
        return answer

    cluster.planner.receive = watched


async def one(cluster: Cluster, index: int, rng: random.Random) -> str:
    """A client: how its request ended."""
    await asyncio.sleep(rng.uniform(0, 1.5))
    fields = {"deadline_s": rng.uniform(0.3, 3), "on_deadline": "expire"} if rng.random() < 0.15 else {}
    handle = await cluster.desk.submit(
        request(f"q{index}", size=rng.choice((256, 512)), steps=rng.randint(1, 12), **fields)
    )
    leaves = (
        asyncio.get_running_loop().call_later(rng.uniform(0, 2), handle.cancel) if index % 4 == 1 else None
    )
    try:
        result = await handle.result()
    except (NonFinite, OutOfMemory):
        return "failed"
    except Expired:
        return "expired"
    except Cancelled:
        return "cancelled"
    except Gone:
        return "given up"
    finally:
        if leaves is not None:
            leaves.cancel()
    assert result.data == b"png"
    return "finished"


async def kill_and_bring_back(cluster: Cluster, rng: random.Random) -> None:
    """Deaths at seeded moments, several at once, of ranks that are on their way back too."""
    returning = []
    for _ in range(rng.randint(1, 4)):
        await asyncio.sleep(rng.expovariate(3))
        for rank in rng.sample(range(4), rng.choice((1, 1, 2))):
            if not cluster.planner.roster.is_gone(rank) and cluster.network._nodes[f"r{rank}"].alive:
                cluster.kill(rank)
                returning.append(asyncio.ensure_future(bring_back(cluster, rank, rng.uniform(0.2, 1.0))))
    await asyncio.gather(*returning)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_whatever_goes_wrong_at_once_every_request_ends_once_and_the_books_are_right(seed: int):
    async def main() -> None:
        trouble = Trouble(seed)
        cluster = Cluster(
            seed=seed,
            survives=True,
            hang_s=2.0,
            fault=trouble.fault,
            hangs=trouble.hangs,
            policy=Wanderer(seed) if seed % 2 else None,
            checkpoints=seed % 3 > 0,
        )
        await cluster.start()
        watch_books(cluster)
        rng = random.Random(seed)
        clients = [one(cluster, index, random.Random(f"{seed}/{index}")) for index in range(NUM_REQUESTS)]
        deaths = asyncio.ensure_future(kill_and_bring_back(cluster, rng))
        ends = await asyncio.gather(*clients)
        await deaths
        assert len(ends) == NUM_REQUESTS
        for index, end in enumerate(ends):
            assert end != "failed" or f"q{index}" in trouble.struck, (index, end)
            assert end != "cancelled" or index % 4 == 1
        await asyncio.sleep(120)
        there = {rank for rank in range(4) if not cluster.planner.roster.is_gone(rank)}
        assert there == {0, 1, 2, 3}, "every rank came back"
        cluster.check_clean()
        cluster.check_lanes()
        await cluster.stop()

    run(main(), limit_s=7200)
