"""The planner's books: what is in work, what the policy makes of it, what reports teach. It sends nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from epe.actors.admission import Limits, workload_of
from epe.actors.ledger import Ledger, Running
from epe.actors.roster import Roster
from epe.actors.trajectory import Trajectory
from epe.families import Family
from epe.messages import Lease, Request, Stage
from epe.planning.calibration import Pinned
from epe.planning.costs import CostTable
from epe.planning.forecast import predicted_finish_s
from epe.planning.view import MAX_LEASES, Assignment, Policy, View, fault_of
from epe.planning.work import cost_key, split_of
from epe.telemetry.log import get_logger

log = get_logger("planner")


@dataclass(frozen=True, kw_only=True)
class PlannerSettings:
    """What the planner knows of its stage. Guidance is split for `cfg_parallel_degree` 2.

    With `survives` a lost rank is started again by somebody, and the others go on meanwhile; without, its loss ends
    the world. `checkpoints` has states kept on the leader.
    """

    family: Family
    widths: tuple[int, ...]
    cfg_parallel_degree: int = 2
    correct_costs: bool = True
    survives: bool = False
    checkpoints: bool = False
    limits: Limits


class Leasing:
    """Mutable, owned by the planner. `round` is the warm-up's policy while there is a warm-up."""

    def __init__(
        self,
        settings: PlannerSettings,
        *,
        policy: Policy,
        fallback: Policy,
        costs: CostTable,
        ledger: Ledger,
        roster: Roster,
    ) -> None:
        self.settings = settings
        self.policy = policy
        self.fallback = fallback
        self.costs = costs
        self.ledger = ledger
        self.roster = roster
        self.trajectories: dict[str, Trajectory] = {}
        self.round: Pinned | None = None

    def admit(self, request: Request, *, now_s: float, for_client: bool) -> Trajectory:
        """Take a request into the books."""
        workload = workload_of(self.settings.family, request)
        trajectory = Trajectory(request, workload, now_s=now_s, for_client=for_client)
        self.trajectories[request.id] = trajectory
        return trajectory

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return sum(not trajectory.lane for trajectory in self.trajectories.values())

    def next_leases(self, *, now_s: float) -> Iterator[Lease]:
        """What the policy wants to run next, entered in the books."""
        view = self._view(now_s=now_s)
        if view.open_ranks and any(t.num_leases < MAX_LEASES for t in view.trajectories):
            for assignment in self._decide(view):
                if not self.ledger.may_break_under(assignment.request_id, assignment.ranks):
                    yield self._enter(assignment, now_s=now_s)

    def next_opening_s(self, *, now_s: float) -> float | None:
        """When the next rank will be about to be free; None if nothing waits for it."""
        if not any(trajectory.wants_lease for trajectory in self.trajectories.values()):
            return None
        return self._view_of((), now_s=now_s, among=self.roster.available).next_opening_s

    def predicted_s(self, request_id: str | None = None, *, now_s: float) -> float:
        """Seconds until a request will end, with the whole queue before it; without a name, the first one."""
        begun, waiting = self._queue()
        # Ranks that are away are on their way back: with none there, a finish is told as if all were.
        among = self.roster.available or None
        view = self._view_of(begun + waiting, now_s=now_s, among=among)
        name = request_id or view.trajectories[0].request_id
        return predicted_finish_s(view, name, self.settings.widths) - now_s

    def observe(self, running: Running) -> None:
        """Learn from a lease that has run."""
        lease, seconds = running.lease, running.seconds
        width = lease.lane.width if lease.stage is Stage.DENOISE else 1
        key = cost_key(self.trajectories[lease.request.id].workload, lease.stage, width)
        log.debug(
            "lease.ran",
            seq=lease.seq,
            request=lease.request.id,
            seconds=seconds,
            gap_s=max(report.gap_s for report in running.done),
            fetch_s=max(report.fetch_s for report in running.done),
        )
        if self.round is not None:
            self.costs.record(key, seconds)
        elif self.settings.correct_costs:
            self.costs.observe(key, seconds)

    def _view(self, *, now_s: float) -> View:
        """What the policy decides on: the requests in work, and of those that wait as many as there is room for,
        larger priority first. One that is being encoded takes room too, since its pixels take memory."""
        begun, waiting = self._queue()
        room = max(0, self.settings.limits.max_inflight - len(begun))
        if len(waiting) > room:
            waiting = sorted(waiting, key=lambda trajectory: -trajectory.request.priority)[:room]
        return self._view_of(begun + waiting, now_s=now_s, among=self.roster.available)

    def _queue(self) -> tuple[list[Trajectory], list[Trajectory]]:
        """The requests that have begun and those that wait, in the order in which they came."""
        begun = [trajectory for trajectory in self.trajectories.values() if trajectory.lane]
        return begun, [trajectory for trajectory in self.trajectories.values() if not trajectory.lane]

    def _view_of(
        self, trajectories: Iterable[Trajectory], *, now_s: float, among: frozenset[int] | None
    ) -> View:
        return View(
            now_s=now_s,
            ranks=self.ledger.rank_views(now_s=now_s, among=among),
            trajectories=tuple(t.view for t in trajectories if t.wants_lease),
            costs=self.costs,
        )

    def _decide(self, view: View) -> tuple[Assignment, ...]:
        """The policy's plan; a policy that raises or plans nonsense is replaced by the default one, aloud."""
        policy = self.round or self.policy
        try:
            plan = policy.plan(view)
            fault = fault_of(view, plan)
        except Exception as error:  # a user's policy may raise anything
            fault = f"it raised {type(error).__name__}: {error}"
        if fault is None:
            return plan
        log.error("policy.replaced", policy=type(policy).__name__, fault=fault)
        if policy is self.fallback:
            raise RuntimeError(f"the default policy failed: {fault}")
        self.policy, self.round = self.fallback, None
        return self.fallback.plan(view)

    def _enter(self, assignment: Assignment, *, now_s: float) -> Lease:
        trajectory = self.trajectories[assignment.request_id]
        ranks, stage, workload = assignment.ranks, trajectory.stage, trajectory.workload
        width = len(ranks) if stage is Stage.DENOISE else 1
        num_steps = assignment.num_steps if stage is Stage.DENOISE else 0
        degree = self.settings.cfg_parallel_degree
        running = self.ledger.enter(
            trajectory.request,
            ranks=ranks,
            stage=stage,
            first_step=trajectory.step,
            num_steps=num_steps,
            split=split_of(width, conditions=workload.conditions, cfg_parallel_degree=degree),
            transfers=trajectory.transfers(ranks),
            now_s=now_s,
            checkpoint=self.settings.checkpoints and trajectory.for_client and stage is not Stage.DECODE,
            expected_s=self.costs.seconds(cost_key(workload, stage, width)) * max(1, num_steps),
        )
        trajectory.leased(running)
        return running.lease
