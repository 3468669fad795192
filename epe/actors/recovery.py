"""What follows from a loss or a failure: who must be told, who is to blame, and when to give a request up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from epe.actors.ledger import Ledger, Running
from epe.actors.roster import Absence, Roster
from epe.actors.trajectory import Trajectory
from epe.messages import Abandon, Failure, FailureKind, Lease, LeaseFailed, Stage

# A request that takes ranks down with it each time must not take down all of them.
MAX_LOST_LEASES = 3
MAX_RECOVERIES = 20


@dataclass(frozen=True, slots=True)
class Loss:
    """A rank is gone: the lease that it was at, whom to tell that lanes are broken, and the reports that it owes."""

    lease: Lease | None
    abandoned: tuple[tuple[int, Abandon], ...]
    reports: tuple[LeaseFailed, ...]

    @property
    def request_id(self) -> str | None:
        return None if self.lease is None else self.lease.request.id


def lost_rank(ledger: Ledger, rank: int, reason: str) -> Loss:
    """Take a rank out of the books."""
    lease = ledger.at_work().get(rank)
    told = {(other, lane) for other, lane in ledger.waiting_for(rank)}
    failure = Failure(kind=FailureKind.RANK_LOST, message=f"rank {rank} is gone: {reason}")
    return Loss(
        lease=lease,
        abandoned=tuple(
            (other, Abandon(lane=lane)) for other, lane in sorted(told, key=lambda each: each[0])
        ),
        reports=ledger.reports_of_lost(rank, failure),
    )


def blame(roster: Roster, running: Running) -> Iterator[tuple[int, Absence]]:
    """The ranks that are quarantined for their part in a failed lease. A request that is bad in itself is nobody's."""
    for report in running.failed:
        if report.consequence or report.failure.kind is FailureKind.BAD_REQUEST:
            continue
        if roster.failed(report.rank, running.lease.request.id, report.failure.message):
            yield report.rank, roster.away[report.rank]


def goes_leaner(trajectory: Trajectory, running: Running, *, widths: tuple[int, ...]) -> bool:
    """Have a request that ran out of memory go on where less is needed; once for its steps, once for its decode. False
    if it has to fail: there is no such place, or that was tried."""
    lease = running.lease
    if running.cause.failure.kind is not FailureKind.OUT_OF_MEMORY or lease.batch_size > 1:
        return False
    match lease.stage:
        case Stage.DENOISE:
            return _takes_steps_on_more(trajectory, len(lease.plane), widths=widths)
        case Stage.DECODE:
            return _decodes_on_one(trajectory, lease.lane.width)
        case _:
            return False


def _takes_steps_on_more(trajectory: Trajectory, width: int, *, widths: tuple[int, ...]) -> bool:
    """On a wider lane each rank has fewer rows."""
    if trajectory.is_leaner:
        return False
    if not any(each > width for each in trajectory.workload.widths(widths, limit=max(widths))):
        return False
    trajectory.bar(tuple(each for each in widths if each <= width))
    return True


def _decodes_on_one(trajectory: Trajectory, width: int) -> bool:
    """A rank that is alone can keep the bands in host memory that it does not work on."""
    if width == 1:
        return False
    trajectory.decodes_alone = True
    return True


def given_up(trajectory: Trajectory) -> Failure | None:
    """The end of a request that breaks its lanes again and again; None to go on."""
    lost, recoveries = len(trajectory.lost_leases), trajectory.accounting.num_recoveries
    if lost < MAX_LOST_LEASES and recoveries < MAX_RECOVERIES:
        return None
    what = (
        f"ranks were lost under {lost} of its leases"
        if lost >= MAX_LOST_LEASES
        else f"it broke {recoveries} times"
    )
    return Failure(
        kind=FailureKind.RANK_LOST,
        message=f"the request was given up: {what}",
        stage=trajectory.stage,
        step=trajectory.step,
    )
