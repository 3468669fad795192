"""A plan while it is written: which ranks may still be given away, and who gets which."""

from __future__ import annotations

from collections.abc import Iterable

from epe.messages import Stage
from epe.planning.speeds import Speed, Speeds
from epe.planning.view import MAX_LEASES, Assignment, RankView, TrajectoryView, View


class Draft:
    """Mutable, lives for one call of `plan`.

    `free` are the ranks that may be given away now: the idle ones and, with `ahead_s`, those whose one lease ends
    within that time (so that short leases follow each other without a gap, and long ones are decided at their
    end, when more is known). `until_s` says for every rank when it will be free.
    """

    def __init__(
        self, view: View, speeds: Speeds, *, pulse_s: float, pulse_steps: int, ahead_s: float = 0.0
    ) -> None:
        self.view = view
        self.speeds = speeds
        self.pulse_s = pulse_s
        self.pulse_steps = pulse_steps
        self._soon_s = view.now_s + ahead_s
        self._ahead = ahead_s > 0
        self.free = {rank.rank: rank.free_s for rank in view.ranks if self._is_free(rank)}
        self.until_s = {rank.rank: rank.free_s for rank in view.ranks}
        self.assignments: list[Assignment] = []
        self.started: set[str] = set()

    def _is_free(self, rank: RankView) -> bool:
        if rank.num_leases == 0:
            return True
        return self._ahead and rank.num_leases < MAX_LEASES and rank.free_s <= self._soon_s

    def may_start(self, trajectory: TrajectoryView) -> bool:
        """Whether its next task can be leased now."""
        if trajectory.request_id in self.started:
            return False
        if trajectory.num_leases == 0:
            return True
        return self._ahead and trajectory.num_leases < MAX_LEASES and trajectory.ready_s <= self._soon_s

    def num_steps(self, trajectory: TrajectoryView, width: int) -> int:
        """Steps of a lease of one pulse."""
        if trajectory.stage is not Stage.DENOISE:
            return 0
        fitting = int(self.pulse_s / max(self.speeds.of(trajectory).step_s[width], 1e-9))
        return min(max(fitting, self.pulse_steps), trajectory.num_steps - trajectory.step)

    def lease_s(self, trajectory: TrajectoryView, width: int, num_steps: int | None = None) -> float:
        """Seconds of the next lease: a pulse's steps, or `num_steps`, or the whole encode or decode."""
        speed: Speed = self.speeds.of(trajectory)
        match trajectory.stage:
            case Stage.ENCODE:
                return speed.encode_s
            case Stage.DENOISE:
                steps = self.num_steps(trajectory, width) if num_steps is None else num_steps
                return steps * speed.step_s[width]
            case _:
                return speed.decode_s

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

    def start(
        self, trajectory: TrajectoryView, ranks: tuple[int, ...], *, num_steps: int | None = None
    ) -> None:
        """Lease the next task on free ranks: one pulse of steps unless `num_steps` says otherwise."""
        width = len(ranks) if trajectory.stage is Stage.DENOISE else 1
        steps = self.num_steps(trajectory, width) if num_steps is None else num_steps
        begin_s = max(self.view.now_s, trajectory.ready_s, *(self.until_s[rank] for rank in ranks))
        end_s = begin_s + self.lease_s(trajectory, width, steps)
        for rank in ranks:
            del self.free[rank]
            self.until_s[rank] = end_s
        self.started.add(trajectory.request_id)
        self.assignments.append(Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=steps))

    @property
    def plan(self) -> tuple[Assignment, ...]:
        """What has been decided."""
        return tuple(self.assignments)
