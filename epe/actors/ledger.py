"""The leases that were sent and are not yet answered: who is busy, until when, with what."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from itertools import count

from epe.messages import (
    Failure,
    Keep,
    Lane,
    LaneAtWork,
    Lease,
    LeaseDone,
    LeaseFailed,
    Request,
    Split,
    Stage,
    Transfer,
)
from epe.planning.view import RankView


class Running:
    """A lease that was sent and is not yet answered by all of its ranks; it is expected to end at `ends_s`. It can
    begin at `ready_s`, when the state is where it is needed, and may be at work for `limit_s`."""

    def __init__(
        self,
        lease: Lease,
        *,
        now_s: float,
        ready_s: float,
        expected_s: float,
        limit_s: float = math.inf,
    ) -> None:
        self.lease = lease
        self.sent_s = now_s
        self.ready_s = ready_s
        self.expected_s = expected_s
        self.ends_s = ready_s + expected_s
        self.limit_s = limit_s
        self.worked_s = 0.0
        self.is_abandoned = False
        self.waiting = set(lease.lane.ranks)
        self.done: list[LeaseDone] = []
        self.failed: list[LeaseFailed] = []

    def answer(self, report: LeaseDone | LeaseFailed) -> bool:
        """Take one rank's report; True when it was the last one."""
        self.waiting.discard(report.rank)
        if isinstance(report, LeaseDone):
            self.done.append(report)
        else:
            self.failed.append(report)
        return not self.waiting

    @property
    def broke(self) -> bool:
        """Whether it failed without a fault of its own: every rank that failed only felt that another one did."""
        return bool(self.failed) and all(report.consequence for report in self.failed)

    @property
    def has_run(self) -> bool:
        """Whether what it was for is there: the state on a rank that came to the end, or the pixels, which the head
        alone sends."""
        ranks = {report.rank for report in self.done}
        return self.lease.lane.head in ranks if self.lease.stage is Stage.DECODE else bool(ranks)

    @property
    def cause(self) -> LeaseFailed:
        """The first failure that is not the echo of another rank's."""
        return min(self.failed, key=lambda report: (report.consequence, report.rank))

    @property
    def task_s(self) -> float:
        """The expected seconds of the task (of one computed step for denoising)."""
        return self.expected_s / max(1, self.lease.num_tasks)

    @property
    def seconds(self) -> float:
        """Device time of the task (of one computed step for denoising), once all of its ranks were at it.

        Ranks that draw steps together exchange in every layer: all end at once, and who began earlier has waited for
        the one that began last, whose time is the lane's. Of those that decode some may have nothing to do: the
        slowest counts.
        """
        times = [report.seconds for report in self.done]
        return min(times) if self.lease.stage is Stage.DENOISE else max(times)

    @property
    def is_cold(self) -> bool:
        """Whether the next such task will take less: on some rank it ran as it is, and will be captured."""
        return any(report.is_cold for report in self.done)

    @property
    def num_tasks(self) -> int:
        """How many times that was: computed steps, or one encode or decode."""
        counted = [report.num_computed for report in self.done if report.num_computed is not None]
        return max(counted, default=self.lease.num_tasks)


class Ledger:
    """One for each planner and epoch. Of a world in planes the planner sees the first one: a rank there stands for
    those at its place in all of them."""

    # A lease that ends this close to when it was expected to changes nothing that is expected after it.
    ON_TIME_S = 1e-6

    def __init__(self, world_size: int, *, epoch: int = 0, num_planes: int = 1) -> None:
        self.world_size = world_size
        self.num_planes = num_planes
        self.epoch = epoch
        self.running: dict[int, Running] = {}
        self._freed_s = [0.0] * world_size
        self._free_s = [0.0] * world_size
        self._num_leases = [0] * world_size
        self._overdue_s = math.inf
        self._seq = count(1)
        self._incarnations: Counter[tuple[int, ...]] = Counter()
        self._lives = [0] * world_size

    def enter(
        self,
        request: Request,
        *,
        ranks: tuple[int, ...],
        stage: Stage,
        first_step: int,
        num_steps: int,
        split: Split,
        transfers: tuple[Transfer, ...],
        now_s: float,
        expected_s: float,
        checkpoint: Keep = "none",
        ready_s: float | None = None,
        limit_s: float = math.inf,
        batch_size: int = 1,
        batch_place: int = 0,
    ) -> Running:
        """The next lease, about to be sent; it cannot begin before `ready_s` (None: it can at once). Those of a batch
        are entered one after the other, with the same ranks, steps and times."""
        lease = Lease(
            seq=next(self._seq),
            epoch=self.epoch,
            lane=Lane(ranks=ranks, incarnation=self._incarnation(ranks)),
            stage=stage,
            request=request,
            first_step=first_step,
            num_steps=num_steps,
            split=split,
            transfers=transfers,
            checkpoint=checkpoint,
            batch_size=batch_size,
            batch_place=batch_place,
        )
        ready_s = now_s if ready_s is None else max(now_s, ready_s)
        running = Running(lease, now_s=now_s, ready_s=ready_s, expected_s=expected_s, limit_s=limit_s)
        self.running[lease.seq] = running
        self._queue(running)
        return running

    def _queue(self, running: Running) -> None:
        """It begins when its last rank is free and its state is there. A batch is one thing to its ranks."""
        if place := running.lease.batch_place:
            running.ends_s = self.running[running.lease.seq - place].ends_s
            return
        ranks = running.lease.lane.ranks
        free_s = [self._free_s[rank] for rank in ranks if self._num_leases[rank]]
        running.ends_s = max([running.ready_s, *free_s]) + running.expected_s
        self._overdue_s = min(self._overdue_s, running.ends_s)
        for rank in ranks:
            self._free_s[rank] = running.ends_s
            self._num_leases[rank] += 1

    def answer(self, report: LeaseDone | LeaseFailed, *, now_s: float) -> Running | None:
        """Take one rank's report; the lease if this was the last of its ranks."""
        running = self.running.get(report.seq)
        if running is None:
            return None
        last = running.answer(report)
        self._freed_s[report.rank] = now_s
        if running.lease.batch_place == 0:
            self._num_leases[report.rank] -= 1
        if not last:
            return None
        del self.running[report.seq]
        on_time = abs(now_s - running.ends_s) <= self.ON_TIME_S
        self._overdue_s = min((r.ends_s for r in self.running.values()), default=math.inf) if on_time else 0.0
        if running.failed:
            # The remains of the broken exchange must not be met again by these ranks.
            self._incarnations[running.lease.lane.ranks] += 1
        return running

    def knows(self, report: LeaseDone | LeaseFailed) -> bool:
        """Whether a report answers a lease of this epoch that is still open on its rank."""
        running = self.running.get(report.seq)
        return report.epoch == self.epoch and running is not None and report.rank in running.waiting

    def reports_of_lost(self, rank: int, failure: Failure) -> tuple[LeaseFailed, ...]:
        """What a lost rank can no longer say: that its leases failed. From now on its lanes are other groups."""
        self._lives[rank] += 1
        return tuple(
            LeaseFailed(seq=running.lease.seq, epoch=self.epoch, rank=rank, failure=failure, consequence=True)
            for running in self.running.values()
            if rank in running.waiting
        )

    def waiting_for(self, rank: int) -> list[tuple[int, Lane]]:
        """The ranks that have leases together with this one, each with the lane."""
        return [
            (other, running.lease.lane)
            for running in self.running.values()
            if rank in running.lease.lane.ranks
            for other in sorted(running.waiting - {rank})
        ]

    def _incarnation(self, ranks: tuple[int, ...]) -> int:
        """Grows when an exchange of these ranks broke, and when one of them was lost."""
        return self._incarnations[ranks] + sum(self._lives[rank] for rank in ranks)

    def may_break_under(self, request_ids: Collection[str], ranks: tuple[int, ...]) -> bool:
        """Whether another request than these is at work on just this lane. If it fails there, the ranks drop the
        lane's exchange and refuse what was sent on it before, so a lease that waits behind it would fail with it."""
        return len(ranks) > 1 and any(
            running.lease.lane.ranks == ranks and running.lease.request.id not in request_ids
            for running in self.running.values()
        )

    def rank_views(self, *, now_s: float, among: frozenset[int] | None = None) -> tuple[RankView, ...]:
        """When each rank (of these) will be free, and how many leases it has."""
        if now_s > self._overdue_s:
            self._expect(now_s)
        everyone = frozenset(range(self.world_size))
        columns = self.whole_columns(everyone if among is None else among)
        return tuple(self._rank_view(rank, now_s) for rank in columns)

    def whole_columns(self, among: frozenset[int]) -> list[int]:
        """The ranks of the first plane which, with those that they stand for, are all among these."""
        if self.num_planes == 1:
            return sorted(among)
        return [rank for rank in range(self.world_size // self.num_planes) if self.column(rank) <= among]

    def column(self, rank: int) -> set[int]:
        """The ranks that stand for this one in all planes."""
        return set(range(rank, self.world_size, self.world_size // self.num_planes))

    def _rank_view(self, rank: int, now_s: float) -> RankView:
        column = slice(rank, None, self.world_size // self.num_planes)
        num_leases, free_s = max(self._num_leases[column]), max(self._free_s[column])
        return RankView(rank=rank, free_s=max(free_s, now_s) if num_leases else now_s, num_leases=num_leases)

    def _expect(self, now_s: float) -> None:
        """When each lease will end, now that one has not ended when it should: leases run in the order in which
        they were sent, and one that takes longer than expected is expected to end now."""
        free_s = self._freed_s.copy()
        self._overdue_s = math.inf
        for running in self.running.values():
            if place := running.lease.batch_place:
                # Where the first of a batch has been answered, the others are about to be.
                first = self.running.get(running.lease.seq - place)
                running.ends_s = now_s if first is None else first.ends_s
                continue
            ranks = running.waiting
            begun_s = max(running.ready_s, *(free_s[rank] for rank in ranks))
            running.ends_s = max(now_s, begun_s + running.expected_s)
            self._overdue_s = min(self._overdue_s, running.ends_s)
            for rank in ranks:
                free_s[rank] = running.ends_s
        self._free_s = free_s

    def at_work(self) -> dict[int, Lease]:
        """The lease that each busy rank is at; the one that waits behind it does not count."""
        at_work: dict[int, Lease] = {}
        for running in self.in_order():
            for rank in running.waiting:
                at_work.setdefault(rank, running.lease)
        return at_work

    def in_order(self) -> list[Running]:
        """The open leases, in the order in which they were sent."""
        return sorted(self.running.values(), key=lambda running: running.lease.seq)

    def lanes_at_work(self) -> tuple[LaneAtWork, ...]:
        """The lanes all of whose ranks are at it."""
        at_work = self.at_work()
        whole = {
            lease.lane.ranks: lease
            for lease in at_work.values()
            if all(at_work.get(rank) is lease for rank in lease.lane.ranks)
        }
        return tuple(
            LaneAtWork(ranks=ranks, request_id=lease.request.id, stage=lease.stage)
            for ranks, lease in sorted(whole.items())
        )
