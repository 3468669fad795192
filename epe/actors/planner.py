"""The planner: admits requests, sends leases, takes reports. It never sees a tensor and never waits for a rank."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec import Struct

from epe.actors.admission import Limits, closed, full, too_late, twice, workload_of
from epe.actors.core import Actor, Down
from epe.actors.directory import Directory
from epe.actors.lines import log_admitted, log_ended
from epe.actors.trajectory import Running, Trajectory
from epe.families import Family
from epe.messages import (
    Accepted,
    Cancel,
    Drain,
    Drop,
    Encoded,
    Ended,
    Failure,
    FailureKind,
    Inspect,
    Lane,
    Lease,
    LeaseDone,
    LeaseFailed,
    Progress,
    RankReady,
    RankStatus,
    Rejected,
    Request,
    Stage,
    Status,
    Submit,
)
from epe.planning.calibration import Pinned, Round
from epe.planning.costs import CostTable
from epe.planning.forecast import predicted_finish_s
from epe.planning.view import Assignment, Policy, RankView, View, fault_of
from epe.planning.work import cost_key, split_of
from epe.telemetry.log import get_logger

log = get_logger("planner")


@dataclass(frozen=True, kw_only=True)
class PlannerSettings:
    """What the planner knows of its stage. Guidance is split for `cfg_parallel_degree` 2."""

    family: Family
    widths: tuple[int, ...]
    cfg_parallel_degree: int = 2
    correct_costs: bool = True
    limits: Limits


class _Expire(Struct, frozen=True, kw_only=True):
    """A timer: the deadline of a request has passed."""

    request_id: str


class Planner(Actor):
    """One for each world. Every event ends in `_plan`, so a lane is never idle for want of a decision."""

    inbox = 8192

    def __init__(
        self,
        settings: PlannerSettings,
        *,
        directory: Directory,
        policy: Policy,
        fallback: Policy,
        costs: CostTable,
        warmup: Iterable[Round] = (),
        epoch: int = 0,
        phase_changed: Callable[[str, str], None] = lambda phase, reason: None,
    ) -> None:
        self.settings = settings
        self.directory = directory
        self.policy = policy
        self.fallback = fallback
        self.costs = costs
        self.warmup = iter(warmup)
        self.epoch = epoch
        self.phase_changed = phase_changed
        self.phase = "loading"
        self.reason = ""
        self.round: Pinned | None = None
        self.ready: dict[int, RankReady] = {}
        self.trajectories: dict[str, Trajectory] = {}
        self.running: dict[int, Running] = {}
        self.incarnations: Counter[tuple[int, ...]] = Counter()
        self.num_finished = 0
        self.last_seq = 0
        self.drained: list[asyncio.Future[bool]] = []
        self.layout: list[tuple[int, ...]] = []

    async def started(self) -> None:
        for rank in range(self.directory.world_size):
            self.watch(self.directory.worker(rank))
        self.watch(self.directory.postprocess)

    async def stopped(self, reason: str) -> None:
        if reason.startswith("crashed") and self.phase != "failed":
            self._enter("failed", f"the planner {reason}")

    async def receive(self, message: object) -> object:
        match message:
            case LeaseDone() | LeaseFailed():
                self._report(message)
            case Submit(request=request):
                return self._submit(request)
            case Encoded():
                self._encoded(message)
            case Cancel(request_id=request_id):
                return self._end_early(request_id, FailureKind.CANCELLED, "the request was cancelled")
            case _Expire(request_id=request_id):
                self._end_early(request_id, FailureKind.EXPIRED, "the deadline has passed")
            case RankReady():
                self._rank_ready(message)
            case Inspect():
                return self._status()
            case Drain(reason=reason):
                return self._drain(reason)
            case Down(address=address, reason=reason):
                self._down(address, reason)
        self._plan()
        return None

    # --- requests come ---

    def _submit(self, request: Request) -> Accepted | Rejected:
        if refusal := self._refusal(request):
            return Rejected(failure=refusal)
        trajectory = self._admit(request, for_client=True)
        now_s = self.now_s
        predicted_s = predicted_finish_s(self._view(), request.id, self.settings.widths) - now_s
        trajectory.predicted_s = predicted_s
        late = trajectory.deadline_s is not None and now_s + predicted_s > trajectory.deadline_s
        if late and self.settings.limits.refuse_late:
            del self.trajectories[request.id]
            return Rejected(failure=too_late(request, predicted_s=predicted_s))
        log_admitted(request, predicted_s=predicted_s, late=late)
        if request.on_deadline == "expire" and request.deadline_s is not None:
            self.after(request.deadline_s, _Expire(request_id=request.id))
        self._plan()
        return Accepted(request_id=request.id, predicted_s=predicted_s, late=late)

    def _refusal(self, request: Request) -> Failure | None:
        if self.phase != "running":
            return closed(self.phase, self.reason)
        if request.id in self.trajectories:
            return twice(request.id)
        num_waiting = sum(not t.lane for t in self.trajectories.values())
        if num_waiting >= self.settings.limits.max_pending:
            first = next(iter(self.trajectories))
            finish_s = predicted_finish_s(self._view(), first, self.settings.widths)
            return full(num_waiting, retry_s=max(1.0, finish_s - self.now_s))
        return None

    def _admit(self, request: Request, *, for_client: bool) -> Trajectory:
        workload = workload_of(self.settings.family, request)
        trajectory = Trajectory(request, workload, now_s=self.now_s, for_client=for_client)
        self.trajectories[request.id] = trajectory
        return trajectory

    # --- leases go ---

    def _plan(self) -> None:
        if self.phase not in ("running", "warming", "draining"):
            return
        view = self._view()
        if not any(t.num_leases < 2 for t in view.trajectories) or not view.open_ranks:
            return
        for assignment in self._decide(view):
            self._lease(view, assignment)

    def _decide(self, view: View) -> tuple[Assignment, ...]:
        """The policy's plan; a policy that raises or plans nonsense is replaced by the default one, aloud."""
        policy = self.round or self.policy
        try:
            plan = policy.plan(view)
            fault = fault_of(view, plan)
        except Exception as error:
            fault = f"it raised {type(error).__name__}: {error}"
        if fault is None:
            return plan
        log.error("policy.replaced", policy=type(policy).__name__, fault=fault)
        if policy is self.fallback:
            raise RuntimeError(f"the default policy failed: {fault}")
        self.policy, self.round = self.fallback, None
        return self.fallback.plan(view)

    def _view(self) -> View:
        now_s = self.now_s
        busy: dict[int, list[Running]] = {rank: [] for rank in range(self.directory.world_size)}
        for running in self.running.values():
            for rank in running.waiting:
                busy[rank].append(running)
        return View(
            now_s=now_s,
            ranks=tuple(
                RankView(
                    rank=rank,
                    num_leases=len(leases),
                    free_s=max(now_s, leases[0].sent_s + sum(r.expected_s for r in leases))
                    if leases
                    else now_s,
                )
                for rank, leases in busy.items()
            ),
            trajectories=tuple(t.view(now_s=now_s) for t in self._in_view()),
            costs=self.costs,
        )

    def _in_view(self) -> Iterator[Trajectory]:
        room = self.settings.limits.max_inflight
        for trajectory in self.trajectories.values():
            if trajectory.wants_lease and (trajectory.lane or room > 0):
                room -= 1
                yield trajectory

    def _lease(self, view: View, assignment: Assignment) -> None:
        trajectory = self.trajectories[assignment.request_id]
        ranks, stage = assignment.ranks, trajectory.stage
        self.last_seq += 1
        lease = Lease(
            seq=self.last_seq,
            epoch=self.epoch,
            lane=Lane(ranks=ranks, incarnation=self.incarnations[ranks]),
            stage=stage,
            request=trajectory.request,
            first_step=trajectory.step,
            num_steps=assignment.num_steps,
            split=split_of(
                len(ranks) if stage is Stage.DENOISE else 1,
                conditions=trajectory.workload.conditions,
                cfg_parallel_degree=self.settings.cfg_parallel_degree,
            ),
            transfers=trajectory.transfers(ranks),
        )
        width = len(ranks) if stage is Stage.DENOISE else 1
        seconds = self.costs.seconds(cost_key(trajectory.workload, stage, width))
        running = Running(lease, now_s=self.now_s, expected_s=seconds * max(1, assignment.num_steps))
        trajectory.leased(running)
        self.running[lease.seq] = running
        log.debug("lease.sent", seq=lease.seq, request=lease.request.id, stage=stage, ranks=ranks)
        for rank in ranks:
            self.ref(self.directory.worker(rank)).tell(lease)
        self._log_layout()

    # --- reports come ---

    def _report(self, report: LeaseDone | LeaseFailed) -> None:
        running = self.running.get(report.seq)
        if running is None or report.epoch != self.epoch:
            log.warning("report.dropped", seq=report.seq, epoch=report.epoch, rank=report.rank)
            return
        if not running.answer(report):
            return
        del self.running[report.seq]
        trajectory = self.trajectories[running.lease.request.id]
        trajectory.leases.remove(running)
        if running.failed:
            self._lease_failed(trajectory, running)
        else:
            self._lease_ran(trajectory, running)
        if trajectory.ending is not None and not trajectory.leases:
            self._end(trajectory, trajectory.ending)

    def _lease_ran(self, trajectory: Trajectory, running: Running) -> None:
        lease = running.lease
        trajectory.ran(running, now_s=self.now_s)
        self._observe(trajectory, running)
        left = trajectory.holders - set(lease.lane.ranks)
        trajectory.holders = set(lease.lane.ranks)
        needed = {rank for later in trajectory.leases for rank in later.lease.lane.ranks}
        self._drop(trajectory, left - needed)
        if lease.stage is Stage.DECODE:
            self._drop(trajectory, trajectory.holders)
            trajectory.holders = set()
        if trajectory.for_client:
            self.ref(self.directory.desk).tell(
                Progress(
                    request_id=lease.request.id,
                    stage=lease.stage,
                    step=lease.first_step + lease.num_steps,
                    num_steps=lease.request.num_steps,
                    ranks=lease.lane.ranks,
                )
            )

    def _observe(self, trajectory: Trajectory, running: Running) -> None:
        width = running.lease.lane.width if running.lease.stage is Stage.DENOISE else 1
        key = cost_key(trajectory.workload, running.lease.stage, width)
        if self.round is not None:
            self.costs.record(key, running.seconds)
        elif self.settings.correct_costs:
            self.costs.observe(key, running.seconds)

    def _lease_failed(self, trajectory: Trajectory, running: Running) -> None:
        lease = running.lease
        # The remains of the broken exchange must not be met again by these ranks.
        self.incarnations[lease.lane.ranks] += 1
        trajectory.holders |= set(lease.lane.ranks)
        if trajectory.ending is None:
            trajectory.ending = running.failure

    def _encoded(self, message: Encoded) -> None:
        trajectory = self.trajectories.get(message.request_id)
        if trajectory is None:
            return
        trajectory.seconds[Stage.FINISH] = message.seconds
        self._end(trajectory, message.failure)

    # --- requests end, each exactly once ---

    def _end_early(self, request_id: str, kind: FailureKind, message: str) -> bool:
        """Cancelled or expired: at once if nothing runs, else when the leases that were sent have run."""
        trajectory = self.trajectories.get(request_id)
        if trajectory is None or trajectory.ending is not None:
            return False
        stage = trajectory.leases[0].lease.stage if trajectory.leases else trajectory.stage
        trajectory.ending = Failure(kind=kind, message=message, stage=stage, step=trajectory.step)
        if not trajectory.leases:
            self._end(trajectory, trajectory.ending)
        self._plan()
        return True

    def _end(self, trajectory: Trajectory, failure: Failure | None) -> None:
        del self.trajectories[trajectory.request.id]
        self._drop(trajectory, trajectory.holders)
        self.num_finished += failure is None
        account = trajectory.account(now_s=self.now_s)
        if trajectory.for_client:
            self.ref(self.directory.desk).tell(
                Ended(request_id=trajectory.request.id, account=account, failure=failure)
            )
            log_ended(account, failure)
        elif failure is not None:
            self._fail(f"the warm-up failed: {failure.message}")
        if self.round is not None and not self.trajectories:
            self._next_round()
        if not self.trajectories:
            self._release_drained()

    def _drop(self, trajectory: Trajectory, ranks: set[int]) -> None:
        for rank in sorted(ranks):
            self.ref(self.directory.worker(rank)).tell(Drop(request_ids=(trajectory.request.id,)))

    # --- the world ---

    def _rank_ready(self, message: RankReady) -> None:
        self.ready[message.rank] = message
        log.info(
            "rank.became_ready", rank=message.rank, device=message.device, load_s=round(message.load_s, 2)
        )
        if self.phase == "loading" and len(self.ready) == self.directory.world_size:
            self._enter("warming")
            self._next_round()

    def _next_round(self) -> None:
        """Draw the next round of the warm-up program, or open the doors."""
        step = next(self.warmup, None)
        if step is None:
            self.round = None
            self.costs.settle()
            if self.phase == "warming":
                self._enter("running")
            return
        self.round = Pinned(step.lanes)
        for request in step.requests:
            self._admit(request, for_client=False)

    def _down(self, address: str, reason: str) -> None:
        if address == self.directory.postprocess:
            for trajectory in [t for t in self.trajectories.values() if t.stage is Stage.FINISH]:
                message = f"the postprocess actor ended: {reason}"
                self._end(
                    trajectory,
                    Failure(kind=FailureKind.TASK_RAISED, message=message, stage=Stage.FINISH),
                )
            return
        self._fail(f"{address} is gone: {reason}")

    def _fail(self, reason: str) -> None:
        """The world cannot go on: every request ends, and whoever started the service hears why."""
        if self.phase == "failed":
            return
        self.round = None
        self._enter("failed", reason)
        self.running.clear()
        for trajectory in list(self.trajectories.values()):
            trajectory.holders = set()
            self._end(trajectory, Failure(kind=FailureKind.RANK_LOST, message=reason, stage=trajectory.stage))

    def _drain(self, reason: str) -> asyncio.Future[bool]:
        done = asyncio.get_running_loop().create_future()
        self.drained.append(done)
        if self.phase != "failed":
            self.warmup = iter(())
            self._enter("draining", reason)
        if not self.trajectories:
            self._release_drained()
        return done

    def _release_drained(self) -> None:
        for done in self.drained:
            if not done.done():
                done.set_result(True)
        self.drained.clear()

    # --- what is seen from outside ---

    def _enter(self, phase: str, reason: str = "") -> None:
        """loading, warming, running, draining, failed: never backwards."""
        self.phase, self.reason = phase, reason
        log.info("service.changed_phase", phase=phase, reason=reason, num_requests=len(self.trajectories))
        self.phase_changed(phase, reason)

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _status(self) -> Status:
        at_work = {rank: r.lease.request.id for r in self.running.values() for rank in r.waiting}
        ranks = tuple(
            RankStatus(
                rank=rank,
                state="loading" if rank not in self.ready else "busy" if rank in at_work else "idle",
                device=self.ready[rank].device if rank in self.ready else "",
                request_id=at_work.get(rank),
            )
            for rank in range(self.directory.world_size)
        )
        started = sum(bool(t.lane) for t in self.trajectories.values())
        return Status(
            phase=self.phase,
            ranks=ranks,
            num_waiting=len(self.trajectories) - started,
            num_running=started,
            num_finished=self.num_finished,
            reason=self.reason,
        )

    def _log_layout(self) -> None:
        """One line whenever the lanes at work are not the ones of before."""
        layout = sorted({running.lease.lane.ranks for running in self.running.values()})
        if layout != self.layout:
            self.layout = layout
            log.info("layout.changed", lanes=[list(ranks) for ranks in layout])
