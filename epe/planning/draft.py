"""A plan while it is written: which ranks may still be given away, and who gets which."""

from __future__ import annotations

from collections.abc import Iterable

from epe.messages import Stage
from epe.planning.speeds import Speeds
from epe.planning.view import MAX_LEASES, Assignment, TrajectoryView, View


class Draft:
    """Mutable, lives for one call of `plan`.

    `free` are the ranks that may be given away now: the open ones, or with `ahead` False only those that idle.
    `until_s` says for every rank when it will be free.
    """

    def __init__(
        self, view: View, speeds: Speeds, *, pulse_s: float, pulse_steps: int, ahead: bool = True
    ) -> None:
        self.view = view
        self.speeds = speeds
        self.pulse_s = pulse_s
        self.pulse_steps = pulse_steps
        self.until_s = {rank.rank: rank.free_s for rank in view.ranks}
        idle = frozenset(rank.rank for rank in view.ranks if rank.num_leases == 0)
        self.free = set(view.open_ranks if ahead else idle)
        self.assignments: list[Assignment] = []
        self.started: set[str] = set()
        self._soon_s = view.now_s + view.look_ahead_s
        self._max_leases = MAX_LEASES if ahead else 1

    def may_start(self, trajectory: TrajectoryView) -> bool:
        """Whether its next task can be leased now: it has no lease, or one that is about to end."""
        if trajectory.request_id in self.started:
            return False
        if trajectory.num_leases == 0:
            return True
        return (
            trajectory.num_leases < self._max_leases and trajectory.ready_with(self.until_s) <= self._soon_s
        )

    def num_steps(self, trajectory: TrajectoryView, width: int) -> int:
        """Steps of a lease of one pulse."""
        if trajectory.stage is not Stage.DENOISE:
            return 0
        speed = self.speeds.of(trajectory)
        fitting = 0 if speed.guessed else int(self.pulse_s / max(speed.step_s(width), 1e-9))
        return trajectory.steps_with(max(fitting, self.pulse_steps))

    def lease_s(self, trajectory: TrajectoryView, width: int, num_steps: int | None = None) -> float:
        """Seconds of the next lease: a pulse's steps, or `num_steps`, or the whole encode or decode."""
        speed = self.speeds.of(trajectory)
        if trajectory.stage is not Stage.DENOISE:
            return speed.task_s(trajectory.stage, width)
        steps = self.num_steps(trajectory, width) if num_steps is None else num_steps
        return trajectory.num_computed(steps) * speed.step_s(width)

    def nearest(self, trajectory: TrajectoryView, width: int, among: Iterable[int]) -> tuple[int, ...]:
        """Up to `width` ranks for this request: its last lane, then other holders of its state, then those that
        are free first."""
        pool = set(among)
        if len(trajectory.lane) == width and pool.issuperset(trajectory.lane):
            return trajectory.lane
        lane, holders = set(trajectory.lane), set(trajectory.holders)
        order = sorted(
            pool, key=lambda rank: (rank not in lane, rank not in holders, self.until_s[rank], rank)
        )
        return tuple(sorted(order[:width]))

    def start_all(self, layout: Iterable[tuple[TrajectoryView, int]]) -> None:
        """Start requests at widths that fit into the free ranks together; who keeps its width keeps its lane."""
        others = []
        for trajectory, width in layout:
            if len(trajectory.lane) == width and self.free.issuperset(trajectory.lane):
                self.start(trajectory, trajectory.lane)
            else:
                others.append((trajectory, width))
        for trajectory, width in others:
            self.start(trajectory, self.nearest(trajectory, width, self.free))

    def start(
        self, trajectory: TrajectoryView, ranks: tuple[int, ...], *, num_steps: int | None = None
    ) -> None:
        """Lease the next task on free ranks: one pulse of steps unless `num_steps` says otherwise."""
        width = len(ranks)
        steps = self.num_steps(trajectory, width) if num_steps is None else num_steps
        begin_s = max(self.view.now_s, trajectory.ready_s, *(self.until_s[rank] for rank in ranks))
        end_s = begin_s + self.lease_s(trajectory, width, steps)
        for rank in ranks:
            self.free.remove(rank)
            self.until_s[rank] = end_s
        self.started.add(trajectory.request_id)
        self.assignments.append(Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=steps))

    @property
    def plan(self) -> tuple[Assignment, ...]:
        """What has been decided."""
        return tuple(self.assignments)
