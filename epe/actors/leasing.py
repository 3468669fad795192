"""The planner's books: what is in work, what the policy makes of it, what reports teach. It sends nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from epe.actors.admission import Limits, workload_of
from epe.actors.deciding import Deciding
from epe.actors.in_work import InWork
from epe.actors.learning import Learning
from epe.actors.ledger import Ledger, Running
from epe.actors.patience import limit_s
from epe.actors.refreshing import cheaper_plan
from epe.actors.roster import Roster
from epe.actors.trajectory import Trajectory
from epe.families import Family
from epe.geometry import over_planes
from epe.messages import Keep, Lease, Request, Split, Stage, Transfer
from epe.planning.calibration import Pinned, Round
from epe.planning.costs import Basis, CostTable
from epe.planning.prediction import Ahead, predicted_finish_s
from epe.planning.view import MAX_LEASES, Assignment, Policy, TrajectoryView, View, widest_within
from epe.planning.work import basis_of, cost_key, shared_width, split_of, too_large, with_barred

# So many requests are played one by one to tell when a new one will end; of those behind only the sum counts.
MAX_PLAYED = 64


@dataclass(frozen=True, kw_only=True)
class PlannerSettings:
    """What the planner knows of its stage. Guidance is split for `cfg_parallel_degree` 2; `widths` are those in each
    of `num_planes` planes of tensor parallelism, `decode_widths` those of lanes that decode. Up to `max_batch` requests
    are drawn as one. With `refreshes` what FlexCache keeps stays behind where a move of it takes longer than a step.

    With `survives` a lost rank is started again by somebody, and the others go on meanwhile; without, its loss ends
    the world. `checkpoints` has states kept on the leader. A lease that is `hang_s` late, beyond ten times its expected
    time, is taken for hung; a world that does not take requests after `start_s` has failed.
    """

    family: Family
    widths: tuple[int, ...]
    cfg_parallel_degree: int = 2
    num_planes: int = 1
    decode_widths: tuple[int, ...] = (1,)
    max_batch: int = 1
    refreshes: bool = False
    correct_costs: bool = True
    survives: bool = False
    checkpoints: bool = False
    hang_s: float = 60.0
    start_s: float = 1800.0
    limits: Limits


class Leasing:
    """Mutable, owned by the planner. `deciding` knows whose plan counts; `learning` hears of all that was measured."""

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
        self.costs = costs
        self.ledger = ledger
        self.roster = roster
        self.trajectories = InWork(max_inflight=settings.limits.max_inflight)
        self.learning = Learning(costs, correct=settings.correct_costs)
        # With these weights nothing is begun any more, and what was begun is finished.
        self.closing: str | None = None
        self.deciding = Deciding(
            policy, fallback=fallback, widths=settings.widths, max_batch=settings.max_batch
        )

    def begin_round(self, step: Round | None) -> None:
        """Only this round of the warm-up is planned, until the next one; None: service."""
        self.learning.round = step
        self.deciding.round = None if step is None else Pinned(step.paths)

    def admit(self, request: Request, *, now_s: float, for_client: bool) -> Trajectory:
        """Take a request into the books."""
        workload = workload_of(self.settings.family, request)
        if for_client:  # the warm-up shall find out what fits
            workload = replace(workload, barred=self.roster.unlike_widths)
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
    def policy_widths(self) -> tuple[int, ...]:
        """The lane widths that the policy in force gives."""
        return getattr(self.deciding.policy, "widths", self.settings.widths)

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return self.trajectories.num_waiting

    def next_leases(self, *, now_s: float) -> Iterator[Lease]:
        """What the policy wants to run next, entered in the books."""
        for weights, ranks in self.roster.by_weights():
            yield from self._leases_with(weights, ranks, now_s=now_s)

    def _leases_with(self, weights: str, ranks: frozenset[int], *, now_s: float) -> Iterator[Lease]:
        """A picture is drawn with the weights that it was begun with, so each kind has a plan of its own."""
        view = self._view(self._placeable(self._drawn_with(weights), ranks), now_s=now_s, among=ranks)
        if view.open_ranks and any(t.num_leases < MAX_LEASES for t in view.trajectories):
            for assignment in self.deciding.plan(view, known=self.trajectories.backlog.by_id):
                names = (assignment.request_id, *assignment.partners)
                if not self.ledger.may_break_under(names, self._ranks_of(assignment)):
                    yield from self._enter(assignment, now_s=now_s)

    def _drawn_with(self, weights: str) -> Sequence[TrajectoryView]:
        """The requests that may be given leases where these weights are."""
        backlog = self.trajectories.backlog
        if self.closing is None and len(self.roster.kinds) == 1:
            return backlog
        begins = weights != self.closing
        return [
            t
            for t in backlog
            if (own := self.trajectories[t.request_id].weights) == weights or (begins and own is None)
        ]

    def _placeable(
        self, backlog: Sequence[TrajectoryView], ranks: frozenset[int]
    ) -> Sequence[TrajectoryView]:
        """Without those whose steps have no memory on the few ranks that are there: they wait for the others."""
        if len(ranks) == self.ledger.world_size:
            return backlog
        return tuple(each for each in backlog if self.has_room(each, ranks))

    def has_room(self, trajectory: TrajectoryView, ranks: frozenset[int]) -> bool:
        """Whether some lane of these ranks has the memory for what a request needs next."""
        if trajectory.stage is not Stage.DENOISE:
            return True
        widest = len(self.ledger.whole_columns(ranks))
        return trajectory.workload.widths(self.settings.widths, limit=1)[0] <= widest

    def next_opening_s(self, *, now_s: float) -> float | None:
        """When the next rank will be about to be free; None if nothing waits for it."""
        backlog = self.trajectories.backlog
        if not backlog:
            return None
        return self._view(backlog, now_s=now_s, among=self.roster.available).next_opening_s

    def predicted_s(self, request_id: str, *, now_s: float) -> float:
        """Seconds until a request that was just taken will end, with all that stands before it."""
        trajectory = self.trajectories[request_id]
        ahead = self.trajectories.ahead_of(trajectory, limit=MAX_PLAYED)
        return self._finish_s(trajectory, ahead, now_s=now_s)

    def retry_s(self, *, now_s: float) -> float:
        """Seconds until the oldest request will end and make room."""
        oldest = self.trajectories.oldest
        return 0.0 if oldest is None else self._finish_s(oldest, Ahead(), now_s=now_s)

    def _finish_s(self, trajectory: Trajectory, ahead: Ahead, *, now_s: float) -> float:
        # Ranks that are away are on their way back: with none there, a finish is told as if all were.
        view = self._view((), now_s=now_s, among=self.roster.available or None)
        decoded_s = predicted_finish_s(view, trajectory.view, ahead=ahead, widths=self.settings.widths)
        return decoded_s + trajectory.finish_s - now_s

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

    def _enter(self, assignment: Assignment, *, now_s: float) -> list[Lease]:
        """Its lease, or those of its batch."""
        batch = [self.trajectories[name] for name in (assignment.request_id, *assignment.partners)]
        ranks, stage, workload = self._ranks_of(assignment), batch[0].stage, batch[0].workload
        width = shared_width(stage, len(self._lane_of(assignment)))
        num_steps = assignment.num_steps if stage is Stage.DENOISE else 0
        key = cost_key(workload, stage, width, batch=len(batch))
        transfers = [trajectory.transfers(ranks, leaving=self.roster.leaving) for trajectory in batch]
        if self.settings.refreshes and stage is Stage.DENOISE and len(batch) == 1:
            self._refresh(batch[0], transfers[0], step_s=self.costs.seconds(key))
        expected_s = self.costs.seconds(key) * batch[0].num_tasks(num_steps)
        is_known = self.costs.fit(key).basis in (Basis.MEASURED, Basis.FITTED)
        split = self._split_of(width, batch[0])
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
                expected_s=expected_s,
                ready_s=ready_s,
                limit_s=limit_s(expected_s, hang_s=self.settings.hang_s, is_known=is_known),
                batch_size=len(batch),
                batch_place=place,
                checkpoint=self._keeps(trajectory),
            )
            trajectory.leased(running)
            trajectory.weights = self.roster.weights_of(ranks[0])
            leases.append(running.lease)
        return leases

    def _refresh(self, trajectory: Trajectory, transfers: tuple[Transfer, ...], *, step_s: float) -> None:
        """Let what is kept of a request stay behind where that is cheaper."""
        plan = cheaper_plan(
            trajectory.request,
            trajectory.step,
            transfers,
            family=self.settings.family,
            costs=self.costs,
            step_s=step_s,
        )
        if plan is not None:
            trajectory.go_on_with(plan)

    def _keeps(self, trajectory: Trajectory) -> Keep:
        """What of the state that its next lease ends with goes to the leader."""
        if not self.settings.checkpoints or not trajectory.for_client or trajectory.stage is Stage.DECODE:
            return "none"
        return "whole" if trajectory.lost_checkpoint else "changes"

    def _ranks_of(self, assignment: Assignment) -> tuple[int, ...]:
        """Of a lane, in all planes; encoding and decoding are work in the first one."""
        if self.trajectories[assignment.request_id].stage is not Stage.DENOISE:
            return self._lane_of(assignment)
        return over_planes(
            assignment.ranks, num_planes=self.settings.num_planes, world_size=self.ledger.world_size
        )

    def _lane_of(self, assignment: Assignment) -> tuple[int, ...]:
        """Those of its ranks that have work: of more than may decode together the others would only wait."""
        trajectory = self.trajectories[assignment.request_id]
        if trajectory.stage is not Stage.DECODE:
            return assignment.ranks
        if trajectory.decodes_alone:
            return assignment.ranks[:1]
        return assignment.ranks[: widest_within(self.settings.decode_widths, len(assignment.ranks))]

    def _split_of(self, width: int, trajectory: Trajectory) -> Split:
        if trajectory.stage is not Stage.DENOISE:
            return Split()
        return split_of(
            width,
            conditions=trajectory.workload.conditions,
            cfg_parallel_degree=self.settings.cfg_parallel_degree,
            num_planes=self.settings.num_planes,
        )
