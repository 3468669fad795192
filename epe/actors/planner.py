"""The planner: admits requests, sends leases, takes reports. It sees no tensor and waits for no rank."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from epe.actors.core import Actor, Down
from epe.actors.directory import Directory
from epe.actors.doors import Doors
from epe.actors.ending import Endings
from epe.actors.judging import Judging
from epe.actors.keeper import CostsLoaded
from epe.actors.leasing import Leasing, PlannerSettings
from epe.actors.ledger import Ledger
from epe.actors.losses import Losses
from epe.actors.opening import Opening
from epe.actors.patience import LOOK_S, Overdue, Patience
from epe.actors.reception import Reception
from epe.actors.recorder import RECORDER, Recording
from epe.actors.roster import Gone, Roster
from epe.actors.timers import Expire, Keep, Look, StartBy, Wake
from epe.actors.upkeep import Upkeep
from epe.actors.warming import Warming
from epe.messages import (
    Abandon,
    Accepted,
    Again,
    Cancel,
    Checkpointed,
    Drain,
    Encoded,
    Failure,
    FailureKind,
    Inspect,
    LaneAtWork,
    LayoutChanged,
    Lease,
    LeaseDone,
    LeaseFailed,
    Operate,
    Predict,
    RankReady,
    Received,
    Rejected,
    Request,
    RestartRanks,
    Status,
    Stop,
    Submit,
)
from epe.planning.calibration import Program
from epe.planning.costs import CostTable
from epe.planning.view import Policy
from epe.telemetry.log import get_logger

# A timer of a loop that counts in milliseconds rings up to half of one too early, and would then again and again.
ALARM_LATE_S = 1e-3

log = get_logger("planner")


class Planner(Actor):
    """One for each world. Every event ends in a plan, so no lane idles for want of a decision; events that wait
    together have one plan, or a burst of arrivals would be planned once for each of them.

    `phase_changed` hears of loading, warming, running, draining and failed, with the reason. With `keeps_costs` there
    is a keeper on this node, which is asked for what an earlier service has measured; with `records` a recorder, which
    is told of every request.
    """

    inbox = 8192

    def __init__(
        self,
        settings: PlannerSettings,
        *,
        directory: Directory,
        policy: Policy,
        fallback: Policy,
        costs: CostTable,
        warmup: Program | None = None,
        keeps_costs: bool = False,
        records: bool = False,
        epoch: int = 0,
        phase_changed: Callable[[str, str], None] = lambda phase, reason: None,
    ) -> None:
        self.settings = settings
        self.directory = directory
        self.ledger = Ledger(directory.world_size, epoch=epoch, num_planes=settings.num_planes)
        self.costs = costs
        self.roster = Roster(directory.world_size)
        self.patience = Patience(self.ledger)
        self.leasing = Leasing(
            settings, policy=policy, fallback=fallback, costs=costs, ledger=self.ledger, roster=self.roster
        )
        self.trajectories = self.leasing.trajectories
        self.warming = Warming(warmup, leasing=self.leasing)
        self.records = records
        self.doors = Doors(phase_changed, inside=self.trajectories)
        self.upkeep = Upkeep(self.leasing, doors=self.doors)
        self.reception = Reception(self.leasing, doors=self.doors)
        self.opening = Opening(
            self,
            doors=self.doors,
            roster=self.roster,
            warming=self.warming,
            keeps_costs=keeps_costs and warmup is not None,
        )
        self.endings = Endings(
            self, directory=directory, leasing=self.leasing, doors=self.doors, opening=self.opening
        )
        self.losses = Losses(
            self, directory=directory, leasing=self.leasing, upkeep=self.upkeep, endings=self.endings
        )
        self.judging = Judging(self, directory=directory, leasing=self.leasing, endings=self.endings)
        # Something has happened since the last plan.
        self.is_outdated = False
        self.lanes: tuple[LaneAtWork, ...] = ()
        self.alarm: asyncio.TimerHandle | None = None
        self.next_look: asyncio.TimerHandle | None = None

    async def started(self) -> None:
        if self.records:
            self.reception.recording = Recording(self.settings.family, self.ref(RECORDER))
        for rank in range(self.directory.world_size):
            self.watch(self.directory.worker(rank))
        self.watch(self.directory.postprocess)
        if self.settings.checkpoints:
            self.watch(self.directory.checkpoints)
        self.after(self.settings.start_s, StartBy())

    async def stopped(self, reason: str) -> None:
        if reason.startswith("crashed") and self.doors.phase != "failed":
            self.doors.enter("failed", f"the planner {reason}")

    async def receive(self, message: object) -> object:
        match message:
            case LeaseDone() | LeaseFailed():
                self._report(message)
            case Submit(request=request, again=again):
                return self._submit(request, again)
            case Encoded():
                self._encoded(message)
            case Received(request_id=request_id):
                if trajectory := self.trajectories.get(request_id):
                    trajectory.pixels_from = None
            case Checkpointed():
                self.losses.checkpointed(message)
                if message.step is not None:
                    return None  # The report that came with the state follows at once.
            case Cancel(request_id=request_id):
                return self._cancelled(request_id)
            case Expire(request_id=request_id):
                self.endings.end_early(request_id, FailureKind.EXPIRED, "the deadline has passed")
            case Look():
                self._look()
            case StartBy():
                if lateness := self.opening.lateness(start_s=self.settings.start_s):
                    self.endings.end_all(lateness)
            case RankReady():
                self._rank_ready(message)
            case CostsLoaded(costs=costs):
                self.opening.costs_came(costs)
            case Keep():
                self.opening.keep()
            case Inspect():
                return self._status()
            case Operate(action=action, rank=rank):
                return self._operated(self.upkeep.operate(action, rank))
            case RestartRanks(weights=weights):
                return self._operated(self.upkeep.restart(weights))
            case Predict(requests=requests):
                return self.reception.predict(requests, now_s=self.now_s)
            case Drain(reason=reason):
                return self._drain(reason)
            case Down(address=address, reason=reason):
                self._down(address, reason)
        self.is_outdated = True
        return None

    def caught_up(self) -> None:
        if self.is_outdated:
            self._plan()

    # --- requests come ---

    def _submit(self, request: Request, again: Again | None) -> Accepted | Rejected:
        reply = self.reception.take(request, again=again, now_s=self.now_s)
        if isinstance(reply, Accepted):
            if request.on_deadline == "expire" and request.deadline_s is not None:
                age_s = 0.0 if again is None else again.age_s
                expiry = self.after(request.deadline_s - age_s, Expire(request_id=request.id))
                self.trajectories[request.id].expiry = expiry
            self.is_outdated = True
        return reply

    def _cancelled(self, request_id: str) -> bool:
        """Whether there was anything to cancel."""
        ends = self.endings.end_early(request_id, FailureKind.CANCELLED, "the request was cancelled")
        self.is_outdated = self.is_outdated or ends
        return ends

    # --- leases go ---

    def _plan(self) -> None:
        self.is_outdated = False
        if not self.doors.plans:
            return
        while (rank := self.upkeep.settle()) is not None:
            self._restart(rank)
        asked_s = self.now_s
        # A lease that is to end within the look-ahead leaves its ranks open, and no alarm will ring for them.
        while leases := list(self.leasing.next_leases(now_s=asked_s)):
            for lease in leases:
                self._send(lease)
            asked_s = self.now_s
        self._set_alarm(asked_s=asked_s)
        self._set_look()
        self._note_lanes()

    def _send(self, lease: Lease) -> None:
        log.debug(
            "lease.sent",
            seq=lease.seq,
            request=lease.request.id,
            stage=lease.stage,
            ranks=lease.lane.ranks,
            num_steps=lease.num_steps,
        )
        for rank in lease.lane.ranks:
            self.ref(self.directory.worker(rank)).tell(lease)

    def _set_alarm(self, *, asked_s: float) -> None:
        """Wake up when the next rank is about to be free, if nothing happens before: also one that has come to be so
        since the policy was asked, for which it gave no lease."""
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None
        if (opening_s := self.leasing.next_opening_s(now_s=asked_s)) is not None:
            self.alarm = self.after(max(0.0, opening_s - self.now_s) + ALARM_LATE_S, Wake())

    def _set_look(self) -> None:
        """Look after the leases that are out."""
        if self.next_look is None and self.ledger.running:
            self.next_look = self.after(LOOK_S, Look())

    # --- reports come ---

    def _report(self, report: LeaseDone | LeaseFailed) -> None:
        if not self.ledger.knows(report):
            log.warning("report.dropped", seq=report.seq, epoch=report.epoch, rank=report.rank)
            return
        if (running := self.ledger.answer(report, now_s=self.now_s)) is None:
            return
        trajectory = self.trajectories[running.lease.request.id]
        for ended in trajectory.ended():
            self.judging.judge(trajectory, ended)
        self.losses.resume(trajectory)
        self.endings.end_if_done(trajectory)

    def _encoded(self, message: Encoded) -> None:
        trajectory = self.trajectories.get(message.request_id)
        if trajectory is not None:
            trajectory.accounting.made_file(message.seconds)
            if message.failure is None:
                # With the way of the pixels, unless the report of their decode comes only now.
                seconds = message.seconds if trajectory.leases else self.now_s - trajectory.served_s
                self.leasing.learning.finished(trajectory.workload, seconds)
            trajectory.encoded = message
            self.trajectories.touch(trajectory)
            self.endings.end_if_done(trajectory)

    # --- ranks go and come back ---

    def _down(self, address: str, reason: str) -> None:
        rank = self.directory.rank_of(address)
        if (
            rank is None
            or not self.settings.survives
            or self.doors.phase not in ("warming", "running", "draining")
        ):
            self.endings.end_all(f"{address} is gone: {reason}")
        elif not self.roster.is_gone(rank):
            self._lose(rank, reason)

    def _look(self) -> None:
        """Give up lanes that hang, then the ranks that do so."""
        self.next_look = None
        for overdue in list(self.patience.look(now_s=self.now_s)):
            self._hurry(overdue)
        if not self.ledger.running:
            self.patience.rest()

    def _hurry(self, overdue: Overdue) -> None:
        lease, reason = overdue.running.lease, overdue.reason
        log.error("lease.was_overdue", seq=lease.seq, ranks=list(overdue.ranks), reason=reason)
        for rank in overdue.ranks:
            if overdue.hung:
                self.ref(self.directory.worker(rank)).tell(Stop(reason=reason, orderly=False))
                self._down(self.directory.worker(rank), reason)
            else:
                self.ref(self.directory.worker(rank)).tell(Abandon(lane=lease.lane))

    def _restart(self, rank: int) -> None:
        """It has nothing that is not elsewhere too. Its parent starts it again at once."""
        reason = "it makes room for its next process"
        self.ref(self.directory.worker(rank)).tell(Stop(reason=reason, again=True))
        self._lose(rank, reason, state="restarting")

    def _operated(self, failure: Failure | None) -> Status | Rejected:
        """The answer to an operator."""
        self._plan()
        return self._status() if failure is None else Rejected(failure=failure)

    def _lose(self, rank: int, reason: str, *, state: Gone = "lost") -> None:
        """Lanes without this rank do not notice. Whatever it was in goes on elsewhere."""
        for report in self.losses.take_out(rank, reason, state=state):
            self._report(report)
        self.losses.go_on()

    # --- the world ---

    def _rank_ready(self, message: RankReady) -> None:
        returned = self.roster.enter(message)
        log.info("rank.became_ready", rank=message.rank, device=message.device, load_s=message.load_s)
        if returned:
            self.watch(self.directory.worker(message.rank))
            self.losses.outlive()
        self.opening.rank_came()

    def _drain(self, reason: str) -> asyncio.Future[bool]:
        emptied = self.doors.emptied()
        if self.doors.phase != "failed":
            self.doors.enter("draining", reason)
        if not self.trajectories:
            self.doors.are_empty()
        return emptied

    # --- what is seen from outside ---

    def _note_lanes(self) -> None:
        """One line whenever the lanes at work are not the ones of before."""
        lanes = self.ledger.lanes_at_work()
        if lanes == self.lanes:
            return
        log.debug("layout.changed", lanes=[lane.ranks for lane in lanes])
        self.lanes = lanes
        self.ref(self.directory.desk).tell(LayoutChanged(lanes=lanes))

    def _status(self) -> Status:
        num_waiting = self.leasing.num_waiting
        return Status(
            phase=self.doors.phase,
            ranks=self.roster.statuses(self.ledger.at_work()),
            num_waiting=num_waiting,
            num_running=len(self.trajectories) - num_waiting,
            num_finished=self.endings.num_finished,
            kept_bytes=sum(each.accounting.last_kept_bytes for each in self.trajectories.values()),
            reason=self.doors.reason or self.upkeep.stall(),
            costs=self.warming.status,
            policy=self.leasing.deciding.status,
            restart=self.upkeep.status,
        )
