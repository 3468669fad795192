"""Ranks that hang in a lease while their event loops turn, in virtual time: found, started again, nothing is lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from epe.actors.ledger import Ledger
from epe.actors.patience import GRACE_S, LOOK_S, Overdue, Patience, limit_s
from epe.errors import Gone
from epe.families import family
from epe.messages import Failure, FailureKind, Lease, LeaseDone, LeaseFailed, Split, Stage
from epe.planning.calibration import Program
from epe.planning.static import StaticCp
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request
from tests.actors.test_recovery import calm


def enter(ledger: Ledger, name: str, *ranks: int, limit_s: float) -> int:
    running = ledger.enter(
        request(name),
        ranks=ranks,
        stage=Stage.DENOISE,
        first_step=2,
        num_steps=3,
        split=Split(),
        transfers=(),
        now_s=0.0,
        expected_s=0.5,
        limit_s=limit_s,
    )
    return running.lease.seq


def looked(patience: Patience, *, until_s: float) -> list[tuple[float, Overdue]]:
    """What is found at each look from 0 on."""
    times = [index * LOOK_S for index in range(int(until_s / LOOK_S) + 1)]
    return [(now_s, overdue) for now_s in times for overdue in patience.look(now_s=now_s)]


def test_a_lane_is_given_up_first_and_then_whoever_does_not_answer():
    ledger = Ledger(2)
    seq = enter(ledger, "a", 0, 1, limit_s=5.0)
    (given_up_s, given_up), (hung_s, hung), *_ = looked(Patience(ledger), until_s=30)
    assert not given_up.hung
    assert given_up.ranks == (0, 1)
    assert hung.hung
    assert 5.0 < given_up_s <= 5.0 + 2 * LOOK_S
    assert GRACE_S < hung_s - given_up_s <= GRACE_S + 2 * LOOK_S
    assert f"lease {seq} (denoise, steps 2 to 4 of request a)" in hung.reason
    assert "0.5 s were expected" in hung.reason


def test_where_one_rank_of_a_lane_has_failed_the_others_have_little_time_left():
    ledger = Ledger(3)
    seq = enter(ledger, "a", 0, 1, 2, limit_s=600.0)
    patience = Patience(ledger)
    assert not looked(patience, until_s=5)
    failure = Failure(kind=FailureKind.RANK_LOST, message="rank 2 is gone")
    for rank in (1, 2):
        ledger.answer(LeaseFailed(seq=seq, epoch=0, rank=rank, failure=failure, consequence=True), now_s=5.0)
    found = [
        (now_s, overdue) for now_s in range(6, 40) for overdue in patience.look(now_s=now_s) if overdue.hung
    ]
    hung_s, hung = found[0]
    assert hung.ranks == (0,)
    assert GRACE_S < hung_s - 5.0 <= GRACE_S + 3 * LOOK_S


def test_what_waits_behind_a_hung_lease_is_not_overdue_itself():
    ledger = Ledger(3)
    first = enter(ledger, "a", 0, limit_s=20.0)
    enter(ledger, "a", 1, limit_s=1.0)
    enter(ledger, "b", 0, 2, limit_s=1.0)
    found = looked(Patience(ledger), until_s=60)
    assert {overdue.running.lease.seq for _, overdue in found} == {first}


def test_time_in_which_the_leader_was_stopped_itself_does_not_count():
    ledger = Ledger(1)
    seq = enter(ledger, "a", 0, limit_s=10.0)
    patience = Patience(ledger)
    assert not looked(patience, until_s=5)
    assert not list(patience.look(now_s=1000.0))
    ledger.answer(LeaseDone(seq=seq, epoch=0, rank=0, next_step=5, seconds=1.0), now_s=1000.0)
    assert not list(patience.look(now_s=1001.0))


def test_a_task_that_nothing_is_known_of_has_more_time():
    assert limit_s(1.0, hang_s=60.0, is_known=True) == 70.0
    assert limit_s(1.0, hang_s=60.0, is_known=False) > 600.0


class HangsOnce:
    """On `rank`, at the first lease that is asked for."""

    def __init__(self, rank: int, stage: Stage = Stage.DENOISE, *, width: int = 1) -> None:
        self.rank, self.stage, self.width = rank, stage, width
        self.has_hung = False

    def __call__(self, lease: Lease, rank: int) -> bool:
        fits = lease.stage is self.stage and lease.lane.width >= self.width
        if self.has_hung or rank != self.rank or not fits:
            return False
        self.has_hung = True
        return True


@pytest.mark.parametrize(
    ("stage", "width"),
    [(Stage.ENCODE, 1), (Stage.DENOISE, 1), (Stage.DENOISE, 4), (Stage.DECODE, 1)],
)
def test_a_rank_that_hangs_is_started_again_and_its_request_goes_on_elsewhere(stage: Stage, width: int):
    async def main() -> None:
        hangs = HangsOnce(0, stage, width=width)
        policy = StaticCp(widths=(4,), pulse_s=0.05, pulse_steps=1) if width == 4 else None
        cluster = Cluster(survives=True, hangs=hangs, hang_s=5.0, policy=policy)
        await cluster.start()
        async with asyncio.timeout(600):
            results = await cluster.draw(*(request(f"q{i}", steps=6) for i in range(6)))
        assert hangs.has_hung
        assert [result.data for result in results] == [b"png"] * 6
        assert sum(result.account.num_recoveries > 0 for result in results) >= 1
        await asyncio.sleep(2)
        assert not cluster.endings[0].done(), "its next life was ended too"
        assert cluster.planner.roster.available == {0, 1, 2, 3}
        await calm(cluster)

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_hangs_whenever_every_request_ends_once(seed: int):
    async def main() -> None:
        rng = random.Random(seed)
        hung: set[tuple[int, int]] = set()

        def hangs(lease: Lease, rank: int) -> bool:
            if len(hung) < 5 and rng.random() < 0.05:
                hung.add((lease.seq, rank))
            return (lease.seq, rank) in hung

        cluster = Cluster(seed=seed, survives=True, hangs=hangs, hang_s=3.0)
        await cluster.start()
        wanted = [request(f"q{i}", size=rng.choice((256, 512)), steps=rng.randint(1, 12)) for i in range(8)]
        async with asyncio.timeout(3600):
            results = await cluster.draw(*wanted, gap_s=0.05)
        assert hung
        given_up = [r for r in results if isinstance(r, Exception) and "given up" in str(r)]
        assert len(given_up) + sum(getattr(r, "data", None) == b"png" for r in results) == 8, results
        await asyncio.sleep(120)
        assert cluster.planner.roster.available == {0, 1, 2, 3}
        await calm(cluster)

    run(main())


def test_a_request_that_hangs_every_rank_is_given_up():
    async def main() -> None:
        cluster = Cluster(survives=True, hangs=lambda lease, rank: lease.request.id == "poison", hang_s=2.0)
        await cluster.start()
        async with asyncio.timeout(3600):
            poison, good = await cluster.draw(request("poison"), request("good"))
        assert isinstance(poison, Gone)
        assert "ranks were lost under 3 of its leases" in str(poison)
        assert good.data == b"png"
        await asyncio.sleep(60)
        await calm(cluster)

    run(main())


def test_without_parents_a_hang_ends_the_world_with_the_rank_and_the_step():
    async def main() -> None:
        cluster = Cluster(world_size=1, hangs=HangsOnce(0), hang_s=2.0)
        await cluster.start()
        (error,) = await cluster.draw(request("a"))
        assert isinstance(error, Gone)
        phase, reason = cluster.phases[-1]
        assert phase == "failed"
        assert "worker0@r0 is gone: it has not ended lease" in reason
        assert "of request a" in reason
        await cluster.stop()

    run(main())


def test_a_warm_up_that_hangs_ends_the_service_with_a_reason():
    async def main() -> None:
        rounds = Program(family=family("zimage"), sizes=((256, 256, 1),), widths=(1,), world=4, num_steps=3)
        cluster = Cluster(warmup=rounds, survives=True, hangs=lambda lease, rank: True, start_s=50.0)
        starting = asyncio.ensure_future(cluster.start())
        await asyncio.sleep(51)
        assert cluster.phases[-1] == ("failed", "the warm-up has not ended within 50 s (service.start_s)")
        starting.cancel()
        await cluster.stop()

    run(main())


def test_a_model_that_does_not_load_ends_the_service_with_its_rank():
    async def main() -> None:
        cluster = Cluster(world_size=2, survives=True, start_s=50.0, loads=lambda rank: rank == 0)
        starting = asyncio.ensure_future(cluster.start())
        await asyncio.sleep(51)
        phase, reason = cluster.phases[-1]
        assert phase == "failed"
        assert reason == "ranks [1] have not loaded their model within 50 s (service.start_s)"
        starting.cancel()
        await cluster.stop()

    run(main())
