"""From widths to ranks: which ranks a layout takes, what of it can start now, and what fills the ranks that wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epe.messages import Stage
from epe.planning.giving import BRISK_EFFICIENCY, Layout
from epe.planning.pace import Pace, Paces
from epe.planning.settings import ElasticSettings
from epe.planning.view import MAX_LEASES, Assignment, TrajectoryView, View
from epe.planning.work import steps_for

Lane = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Open ranks that someone waits on until `until_s`, and who: they run what ends before."""

    ranks: Lane
    until_s: float
    trajectory: TrajectoryView | None = None


class Placing:
    """Mutable, lives for one plan. `free_s` has when each rank that is in no lane yet will be free."""

    def __init__(
        self, view: View, paces: Paces, settings: ElasticSettings, *, patience_s: float = float("inf")
    ) -> None:
        self.view = view
        self.paces = paces
        self.settings = settings
        self.patience_s = patience_s
        self.soon_s = view.now_s + view.look_ahead_s
        self.open_ranks = view.open_ranks
        self.free_s = {rank.rank: rank.free_s for rank in view.ranks}
        self._until_s = dict(self.free_s)
        self.plan: list[Assignment] = []

    def run(
        self, layout: Layout, others: Sequence[TrajectoryView], *, needed_s: float
    ) -> tuple[Assignment, ...]:
        """The leases of a layout that can be sent now. Ranks that must wait for the rest of their lane, and those
        that are in no lane (until `needed_s`), run what ends before: the next task of who waits, else of `others`."""
        starts = [self._start(trajectory, lane) for trajectory, lane in self._lanes(layout)]
        unwanted = tuple(rank for rank in self.free_s if rank in self.open_ranks)
        holds = [*(hold for hold in starts if hold is not None), Hold(unwanted, needed_s)]
        self._backfill(holds, others)
        return tuple(self.plan)

    # --- which ranks ---

    def _lanes(self, layout: Layout) -> list[tuple[TrajectoryView, Lane]]:
        """Most important first: a lane that keeps its width keeps its ranks, the others choose."""
        lanes = []
        kept = [(t.request_id, t.lane) for t, width in layout if len(t.lane) == width]
        for trajectory, width in layout:
            lane = trajectory.lane
            if len(lane) != width or any(rank not in self.free_s for rank in lane):
                others = {rank for name, ranks in kept for rank in ranks if name != trajectory.request_id}
                lane = self._nearest(trajectory, width, others)
            lanes.append((trajectory, self._take(lane)))
        return lanes

    def _take(self, lane: Lane) -> Lane:
        for rank in lane:
            del self.free_s[rank]
        return lane

    def _nearest(self, trajectory: TrajectoryView, width: int, others: set[int]) -> Lane:
        """Ranks that are free when the request is, first of all those that hold its state, and rather those that are
        in no lane of `others`, then those that are free first; fewer than `width` if it would be late by waiting for
        the last of them."""
        begin_s = max(self.soon_s, trajectory.ready_s)
        free_s, holders = self.free_s, trajectory.holders

        def distance(rank: int) -> tuple[float, bool, bool, float, int]:
            wait_s = max(0.0, free_s[rank] - begin_s)
            return (wait_s, rank not in holders, rank in others, free_s[rank], rank)

        order = sorted(free_s, key=distance)
        if trajectory.deadline_s is not None:
            width = self._timely(trajectory, width, [max(begin_s, free_s[rank]) for rank in order])
        return tuple(sorted(order[:width]))

    def _timely(self, trajectory: TrajectoryView, width: int, ready_s: list[float]) -> int:
        """The widest lane that ends in time, at most `width`; if there is none, the one that ends first."""
        pace = self.paces.of(trajectory)
        assert trajectory.deadline_s is not None
        best, best_s = width, float("inf")
        for each in reversed(self.settings.options(trajectory, pace)):
            if each <= min(width, len(ready_s)):
                end_s = ready_s[each - 1] + pace.remaining_s(trajectory, each)
                if end_s <= trajectory.deadline_s:
                    return each
                if end_s < best_s:
                    best, best_s = each, end_s
        return best

    # --- what starts ---

    def _start(self, trajectory: TrajectoryView, lane: Lane) -> Hold | None:
        """Send the next lease if its ranks and its request are about to be free; else, or if the next task is narrower
        than the lane, hold the ranks of the lane that are open."""
        waiting = tuple(rank for rank in lane if rank in self.open_ranks)
        task = self._task_ranks(trajectory, lane)
        may_start = trajectory.num_leases < MAX_LEASES and trajectory.ready_with(self._until_s) <= self.soon_s
        if may_start and task and all(rank in self.open_ranks for rank in task):
            end_s = self._send(trajectory, task)
            rest = tuple(rank for rank in waiting if rank not in task)
            return Hold(rest, end_s) if rest else None
        until_s = max([trajectory.ready_s, *(self._until_s[rank] for rank in lane)])
        return Hold(waiting, until_s, trajectory) if waiting else None

    def _task_ranks(self, trajectory: TrajectoryView, lane: Lane) -> Lane:
        """The ranks of a lane that the next task takes: those that are free first."""
        if trajectory.stage is Stage.DENOISE:
            return lane
        ladder = self.paces.of(trajectory).ladder(trajectory.stage)
        width = max((width for width, _ in ladder if width <= len(lane)), default=1)
        holders, now_s = trajectory.holders, self.view.now_s
        first = sorted(lane, key=lambda rank: (max(now_s, self._until_s[rank]), rank not in holders, rank))
        return tuple(sorted(first[:width]))

    def _send(self, trajectory: TrajectoryView, ranks: Lane) -> float:
        """When the lease is expected to end."""
        num_steps = self._num_steps(trajectory, len(ranks))
        self.plan.append(Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=num_steps))
        begin_s = max([self.view.now_s, trajectory.ready_s, *(self._until_s[rank] for rank in ranks)])
        return begin_s + self._lease_s(trajectory, len(ranks), num_steps)

    def _num_steps(self, trajectory: TrajectoryView, width: int) -> int:
        settings = self.settings
        return steps_for(
            self.view.costs, trajectory, width, pulse_s=settings.pulse_s, pulse_steps=settings.pulse_steps
        )

    def _lease_s(self, trajectory: TrajectoryView, width: int, num_steps: int) -> float:
        pace = self.paces.of(trajectory)
        if trajectory.stage is Stage.DENOISE:
            return trajectory.num_computed(num_steps) * pace.step_s[width]
        return dict(pace.ladder(trajectory.stage))[width]

    # --- what fills ---

    def _backfill(self, holds: Sequence[Hold], others: Sequence[TrajectoryView]) -> None:
        sent = {assignment.request_id for assignment in self.plan}
        for hold in holds:
            ranks = hold.ranks
            for trajectory in others if hold.trajectory is None else (hold.trajectory, *others):
                if not ranks:
                    break
                if trajectory.num_leases or trajectory.request_id in sent:
                    continue
                if width := self._fitting(trajectory, ranks, hold.until_s):
                    holders = trajectory.holders
                    nearest = sorted(ranks, key=lambda rank: (rank not in holders, rank))
                    self._send(trajectory, tuple(sorted(nearest[:width])))
                    sent.add(trajectory.request_id)
                    ranks = tuple(nearest[width:])

    def _fitting(self, trajectory: TrajectoryView, ranks: Lane, until_s: float) -> int:
        """The widest brisk lane on some of `ranks` on which the next lease ends in time; 0 if there is none."""
        pace = self.paces.of(trajectory)
        possible = self._possible(trajectory, pace)
        for width in reversed(possible):
            if width <= len(ranks) and (width == possible[0] or self._is_brisk(trajectory, pace, width)):
                seconds = self._lease_s(trajectory, width, self._num_steps(trajectory, width))
                if self.view.now_s + self._move_s(trajectory, width, ranks) + seconds <= until_s:
                    return width
        return 0

    def _possible(self, trajectory: TrajectoryView, pace: Pace) -> tuple[int, ...]:
        """The widths that a task which fills may have: steps as short as those that may come ask for."""
        if trajectory.stage is Stage.ENCODE:
            return (1,)
        options = self.settings.options(trajectory, pace)
        if trajectory.stage is Stage.DECODE:
            return options
        narrowest = pace.narrowest(self.patience_s)
        return tuple(width for width in options if width >= narrowest) or options[-1:]

    def _move_s(self, trajectory: TrajectoryView, width: int, ranks: Lane) -> float:
        """Until the state of a request is on the first `width` of these ranks to get it."""
        if trajectory.stage is Stage.ENCODE or len(set(ranks).intersection(trajectory.holders)) >= width:
            return 0.0
        return self.view.costs.migration_s(trajectory.workload.state_bytes)

    def _is_brisk(self, trajectory: TrajectoryView, pace: Pace, width: int) -> bool:
        return pace.efficiency_of(trajectory.stage, width) >= BRISK_EFFICIENCY
