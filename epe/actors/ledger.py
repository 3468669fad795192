"""The leases that were sent and are not yet answered: who is busy, until when, with what."""

from __future__ import annotations

from collections import Counter
from itertools import count

from epe.messages import Lane, Lease, LeaseDone, LeaseFailed, Request, Split, Stage, Transfer
from epe.planning.view import RankView


class Running:
    """A lease that was sent and is not yet answered by all of its ranks."""

    def __init__(self, lease: Lease, *, now_s: float, expected_s: float) -> None:
        self.lease = lease
        self.sent_s = now_s
        self.expected_s = expected_s
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
    def cause(self) -> LeaseFailed:
        """The first failure that is not the echo of another rank's."""
        return min(self.failed, key=lambda report: (report.consequence, report.rank))

    @property
    def seconds(self) -> float:
        """The slowest member's device time of the task (of one step for denoising)."""
        return max(report.seconds for report in self.done)


class Ledger:
    """One for each planner and epoch."""

    def __init__(self, world_size: int, *, epoch: int = 0) -> None:
        self.world_size = world_size
        self.epoch = epoch
        self.running: dict[int, Running] = {}
        self._seq = count(1)
        self._incarnations: Counter[tuple[int, ...]] = Counter()

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
    ) -> Running:
        """The next lease, about to be sent."""
        lease = Lease(
            seq=next(self._seq),
            epoch=self.epoch,
            lane=Lane(ranks=ranks, incarnation=self._incarnations[ranks]),
            stage=stage,
            request=request,
            first_step=first_step,
            num_steps=num_steps,
            split=split,
            transfers=transfers,
        )
        running = self.running[lease.seq] = Running(lease, now_s=now_s, expected_s=expected_s)
        return running

    def answer(self, report: LeaseDone | LeaseFailed) -> Running | None:
        """Take one rank's report; the lease if this was the last of its ranks."""
        running = self.running.get(report.seq)
        if running is None or not running.answer(report):
            return None
        del self.running[report.seq]
        if running.failed:
            # The remains of the broken exchange must not be met again by these ranks.
            self._incarnations[running.lease.lane.ranks] += 1
        return running

    def knows(self, report: LeaseDone | LeaseFailed) -> bool:
        """Whether a report answers a lease of this epoch that is still open."""
        return report.epoch == self.epoch and report.seq in self.running

    def rank_views(self, *, now_s: float) -> tuple[RankView, ...]:
        """When each rank will be free, and how many leases it has."""
        leases: dict[int, list[Running]] = {rank: [] for rank in range(self.world_size)}
        for running in self.running.values():
            for rank in running.waiting:
                leases[rank].append(running)
        return tuple(
            RankView(rank=rank, free_s=_free_s(its, now_s), num_leases=len(its))
            for rank, its in leases.items()
        )

    def at_work(self) -> dict[int, Lease]:
        """The lease that each busy rank is at; the one that waits behind it does not count."""
        at_work: dict[int, Lease] = {}
        for running in sorted(self.running.values(), key=lambda running: running.lease.seq):
            for rank in running.waiting:
                at_work.setdefault(rank, running.lease)
        return at_work

    def lanes_at_work(self) -> list[tuple[int, ...]]:
        """The lanes all of whose ranks are at it."""
        at_work = self.at_work()
        return sorted(
            {
                lease.lane.ranks
                for lease in at_work.values()
                if all(at_work.get(rank) is lease for rank in lease.lane.ranks)
            }
        )


def _free_s(leases: list[Running], now_s: float) -> float:
    """A lease that takes longer than expected is expected to end now."""
    if not leases:
        return now_s
    return max(now_s, leases[0].sent_s + sum(running.expected_s for running in leases))
