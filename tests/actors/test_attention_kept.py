"""Requests that keep attention between their steps, through the real planner, where ranks have little memory."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from epe.actors.learning import Learning
from epe.actors.ledger import Running
from epe.cache import CacheRules, resolve
from epe.errors import BadRequest
from epe.messages import Lane, Lease, LeaseDone, Pab, Request, Stage
from epe.planning.costs import CostTable, Workload
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request

STEPS = 12
RANK_BYTES, MODEL_BYTES = 10 * 2**30, 8 * 2**30


def keeping(name: str, num_bytes: int) -> Request:
    reuse = resolve(Pab(), CacheRules(attention=("joint",)), num_steps=STEPS)
    assert reuse is not None
    return request(name, steps=STEPS, reuse=replace(reuse, attention_bytes=num_bytes))


def test_what_one_rank_cannot_keep_is_drawn_on_lanes_that_can_and_else_refused_before() -> None:
    async def main() -> None:
        cluster = Cluster(world_size=4)
        await cluster.start()
        memory = cluster.planner.costs.memory
        memory.limit_bytes, memory.resident_bytes = RANK_BYTES, MODEL_BYTES
        small, large, huge = await cluster.draw(
            keeping("small", 2**30), keeping("large", 5 * 2**30), keeping("huge", 9 * 2**30)
        )
        assert small.data == large.data == b"png"
        assert isinstance(huge, BadRequest)
        assert "10.2 GiB on a rank, which has 10; ask for a smaller size, or for less reuse" in str(huge)
        leases = [lease for _, _, lease in cluster.world.visits if lease.stage is Stage.DENOISE]
        assert {lease.lane.width for lease in leases if lease.request.id == "large"} <= {3, 4}
        assert not any(lease.request.id == "huge" for lease in leases)
        await asyncio.sleep(1)
        cluster.check_clean()
        await cluster.stop()

    run(main())


def ran(learning: Learning, asked: Request) -> None:
    """A lease of its steps, in which a rank had 1 TiB in use."""
    lease = Lease(
        seq=1,
        epoch=0,
        lane=Lane(ranks=(0,)),
        stage=Stage.DENOISE,
        request=asked,
        first_step=0,
        num_steps=STEPS,
    )
    running = Running(lease, now_s=0.0, ready_s=0.0, expected_s=1.0)
    running.answer(
        LeaseDone(seq=1, epoch=0, rank=0, next_step=STEPS, seconds=1.0, gap_s=0.0, peak_bytes=2**40)
    )
    learning.ran(running, Workload(tokens=256, conditions=2))


def test_what_pab_has_kept_teaches_nothing_about_other_requests() -> None:
    learning = Learning(CostTable())
    ran(learning, keeping("a", 2**39))
    assert learning.costs.memory.peaks == {}
    ran(learning, request("b", steps=STEPS))
    assert list(learning.costs.memory.peaks.values()) == [2**40]
