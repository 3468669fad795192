"""What FlexCache keeps moves with a request, or stays behind where that is cheaper: the planner weighs it."""

from __future__ import annotations

import asyncio

import pytest

from epe.cache import CacheRules, num_kept, resolve
from epe.messages import CacheAccount, FreeCache, Lease, Request, Stage
from epe.planning.costs import Migration
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request
from tests.actors.test_service import Wanderer
from tests.cache.profiles import made_up

STEPS = 12
QUICK, SLOW = Migration(bytes_per_s=1e9), Migration(bytes_per_s=1e4)


def cached(name: str) -> Request:
    reuse = resolve(FreeCache(fresh_budget=6), CacheRules(profile=made_up()), num_steps=STEPS)
    return request(name, steps=STEPS, reuse=reuse)


async def drawn(**settings: object) -> tuple[CacheAccount, list[Lease]]:
    """A request that moves at every step, as slowly as is assumed: its account and its leases with steps."""
    cluster = Cluster(policy=Wanderer(1), correct_costs=False, **settings)
    await cluster.start()
    (result,) = await cluster.draw(cached("a"))
    await asyncio.sleep(1)
    cluster.check_clean()
    await cluster.stop()
    leases = {lease.seq: lease for _, _, lease in cluster.world.visits if lease.stage is Stage.DENOISE}
    return result.account.cache, [leases[seq] for seq in sorted(leases)]


def test_where_a_move_takes_longer_than_a_step_what_is_kept_stays_and_the_account_says_so() -> None:
    account, leases = run(drawn(refreshes=True, migration=SLOW))
    plan = leases[-1].request.reuse
    assert plan is not None
    assert account.refreshed == plan.refreshed != ()
    assert account.computed_steps == len(plan.computed) == 6 + len(plan.refreshed)
    assert [lease.first_step for lease in leases if lease.leaves_kept] == list(plan.refreshed)
    for lease in leases:
        if lease.transfers and not lease.leaves_kept:
            assert num_kept(lease.request.reuse, lease.first_step, num_steps=STEPS) == 0


@pytest.mark.parametrize(("refreshes", "migration"), [(True, QUICK), (False, SLOW)])
def test_it_moves_where_that_is_quicker_than_a_step_or_nobody_allows_another_picture(
    refreshes: bool, migration: Migration
) -> None:
    account, leases = run(drawn(refreshes=refreshes, migration=migration))
    assert any(lease.transfers for lease in leases)
    assert not any(lease.leaves_kept for lease in leases)
    assert (account.computed_steps, account.refreshed) == (6, ())
