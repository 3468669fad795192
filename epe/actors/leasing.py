"""The planner's books: what is in work, what the policy makes of it, what reports teach. It sends nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from epe.actors.admission import Limits, workload_of
from epe.actors.in_work import InWork
from epe.actors.learning import Learning
from epe.actors.ledger import Ledger, Running
from epe.actors.roster import Roster
from epe.actors.trajectory import Trajectory
from epe.families import Family
from epe.geometry import over_planes
from epe.messages import Lease, Request, Split, Stage
from epe.planning.batching import with_partners
from epe.planning.calibration import Pinned, Round
from epe.planning.costs import Basis, CostTable
from epe.planning.forecast import predicted_finish_s
from epe.planning.view import MAX_LEASES, Assignment, Policy, TrajectoryView, View, fault_among
from epe.planning.work import basis_of, cost_key, split_of, too_large, with_barred
from epe.telemetry.log import get_logger

log = get_logger("planner")


@dataclass(frozen=True, kw_only=True)
class PlannerSettings:
    """What the planner knows of its stage. Guidance is split for `cfg_parallel_degree` 2; `widths` are those in each
    of `num_planes` planes of tensor parallelism, `decode_widths` those of lanes that decode. Up to `max_batch` requests
    are drawn as one.

    With `survives` a lost rank is started again by somebody, and the others go on meanwhile; without, its loss ends
    the world. `checkpoints` has states kept on the leader.
    """

    family: Family
    widths: tuple[int, ...]
    cfg_parallel_degree: int = 2
    num_planes: int = 1
    decode_widths: tuple[int, ...] = (1,)
    max_batch: int = 1
    correct_costs: bool = True
    survives: bool = False
    checkpoints: bool = False
    limits: Limits


class Leasing:
    """Mutable, owned by the planner. `round` is the warm-up's policy while there is a warm-up; `learning` hears of
    all that was measured."""

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
        self.trajectories = InWork(max_inflight=settings.limits.max_inflight)
        self.learning = Learning(costs, correct=settings.correct_costs)
        self.round: Pinned | None = None

    def begin_round(self, step: Round | None) -> None:
        """Only this round of the warm-up is planned, until the next one; None: service."""
        self.learning.round = step
        self.round = None if step is None else Pinned(step.paths)

    def admit(self, request: Request, *, now_s: float, for_client: bool) -> Trajectory:
        """Take a request into the books."""
        workload = workload_of(self.settings.family, request)
        if for_client:  # the warm-up shall find out what fits
            workload = with_barred(self.costs, workload, self.settings.widths)
        finish = cost_key(workload, Stage.FINISH, 1)
        trajectory = Trajectory(
            request,
            workload,
            now_s=now_s,
            for_client=for_client,
            finish_s=0.0 if self.costs.guesses(finish) else self.costs.seconds(finish),
            changed=self.trajectories.touch,
        )
        self.trajectories[request.id] = trajectory
        return trajectory

    def lacks_memory(self, request: Request) -> str | None:
        """Why no lane can draw a request, in one sentence, or None."""
        return too_large(self.costs, workload_of(self.settings.family, request), self.settings.widths)

    def basis(self, request_id: str) -> Basis:
        """What the predicted finish of a request rests on."""
        return basis_of(self.costs, self.trajectories[request_id].workload, self.settings.widths)

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return self.trajectories.num_waiting

    def next_leases(self, *, now_s: float) -> Iterator[Lease]:
        """What the policy wants to run next, entered in the books."""
        view = self._view(self.trajectories.backlog, now_s=now_s, among=self.roster.available)
        if view.open_ranks and any(t.num_leases < MAX_LEASES for t in view.trajectories):
            for assignment in self._decide(view):
                names = (assignment.request_id, *assignment.partners)
                if not self.ledger.may_break_under(names, self._ranks_of(assignment)):
                    yield from self._enter(assignment, now_s=now_s)

    def next_opening_s(self, *, now_s: float) -> float | None:
        """When the next rank will be about to be free; None if nothing waits for it."""
        backlog = self.trajectories.backlog
        if not backlog:
            return None
        return self._view(backlog, now_s=now_s, among=self.roster.available).next_opening_s

    def predicted_s(self, request_id: str | None = None, *, now_s: float) -> float:
        """Seconds until a request will end, with the whole queue before it; without a name, the first one."""
        begun = [each for each in self.trajectories.values() if each.lane]
        waiting = [each for each in self.trajectories.values() if not each.lane]
        everybody = tuple(each.view for each in begun + waiting if each.wants_lease)
        # Ranks that are away are on their way back: with none there, a finish is told as if all were.
        view = self._view(everybody, now_s=now_s, among=self.roster.available or None)
        name = request_id or view.trajectories[0].request_id
        decoded_s = predicted_finish_s(view, name, self.settings.widths)
        return decoded_s + self.trajectories[name].finish_s - now_s

    def observe(self, running: Running) -> None:
        """Learn from a lease that has run."""
        self.learning.ran(running, self.trajectories[running.lease.request.id].workload)

    def _view(
        self, trajectories: Sequence[TrajectoryView], *, now_s: float, among: frozenset[int] | None
    ) -> View:
        ranks = self.ledger.rank_views(now_s=now_s, among=among)
        return View(
            now_s=now_s,
            ranks=ranks,
            trajectories=trajectories,
            costs=self.costs,
            decode_widths=self.settings.decode_widths,
        )

    def _decide(self, view: View) -> tuple[Assignment, ...]:
        """The policy's plan; a policy that raises or plans nonsense is replaced by the default one, aloud."""
        policy = self.round or self.policy
        try:
            plan = policy.plan(view)
            fault = fault_among(self.trajectories.backlog.by_id, plan, open_ranks=view.open_ranks)
            if fault is None and self.round is None:
                plan = with_partners(view, plan, max_batch=self.settings.max_batch)
        except Exception as error:  # a user's policy may raise anything
            fault = f"it raised {type(error).__name__}: {error}"
        if fault is None:
            return plan
        log.error("policy.replaced", policy=type(policy).__name__, fault=fault)
        if policy is self.fallback:
            raise RuntimeError(f"the default policy failed: {fault}")
        self.policy = self.fallback
        self.begin_round(None)
        return self.fallback.plan(view)

    def _enter(self, assignment: Assignment, *, now_s: float) -> list[Lease]:
        """Its lease, or those of its batch."""
        batch = [self.trajectories[name] for name in (assignment.request_id, *assignment.partners)]
        ranks, stage, workload = self._ranks_of(assignment), batch[0].stage, batch[0].workload
        width = len(assignment.ranks)
        num_steps = assignment.num_steps if stage is Stage.DENOISE else 0
        task_s = self.costs.seconds(cost_key(workload, stage, width, batch=len(batch)))
        split = self._split_of(width, batch[0])
        transfers = [trajectory.transfers(ranks) for trajectory in batch]
        arrivals = zip(batch, transfers, strict=True)
        ready_s = max(trajectory.state_s(each, self.costs, now_s=now_s) for trajectory, each in arrivals)
        leases = []
        for place, trajectory in enumerate(batch):
            running = self.ledger.enter(
                trajectory.request,
                ranks=ranks,
                stage=stage,
                first_step=trajectory.step,
                num_steps=num_steps,
                split=split,
                transfers=transfers[place],
                now_s=now_s,
                expected_s=task_s * max(1, num_steps),
                ready_s=ready_s,
                batch_size=len(batch),
                batch_place=place,
                checkpoint=self._keeps(trajectory),
            )
            trajectory.leased(running)
            leases.append(running.lease)
        return leases

    def _keeps(self, trajectory: Trajectory) -> bool:
        """Whether the state that its next lease ends with goes to the leader."""
        return self.settings.checkpoints and trajectory.for_client and trajectory.stage is not Stage.DECODE

    def _ranks_of(self, assignment: Assignment) -> tuple[int, ...]:
        """Of a lane, in all planes; encoding and decoding are work in the first one."""
        if self.trajectories[assignment.request_id].stage is not Stage.DENOISE:
            return assignment.ranks
        return over_planes(
            assignment.ranks, num_planes=self.settings.num_planes, world_size=self.ledger.world_size
        )

    def _split_of(self, width: int, trajectory: Trajectory) -> Split:
        if trajectory.stage is not Stage.DENOISE:
            return Split()
        return split_of(
            width,
            conditions=trajectory.workload.conditions,
            cfg_parallel_degree=self.settings.cfg_parallel_degree,
            num_planes=self.settings.num_planes,
        )
