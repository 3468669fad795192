"""The default policy: widths change while requests run, wherever that makes the queue end better.

A layout is thought out over the whole pool, as if every rank were free; then what can start is started.
Only lanes that exchange ranks wait for each other; the others run through.
"""

from __future__ import annotations

from collections.abc import Sequence

from epe.messages import Stage
from epe.planning.filling import Filled, Job, fill, job_of
from epe.planning.placing import placed, started
from epe.planning.settings import ElasticSettings
from epe.planning.sharing import Layout, options, share
from epe.planning.view import Assignment, TrajectoryView, View
from epe.planning.work import remaining_s, step_s

# Work that will be late anyway runs as wide as this share of ideal speed-up allows.
BRISK_EFFICIENCY = 0.7

__all__ = ["Elastic", "ElasticSettings"]


class Elastic:
    """In this order: requests that starve (on a few ranks, so that a backlog does not turn everything into a
    queue by age); deadlines that can be met together, each as narrow as it may be;
    requests without a deadline, for the least summed latency; then what is left widens those that run, and
    those that are late anyway go last."""

    def __init__(self, settings: ElasticSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        if not view.trajectories:
            return ()
        layout, others = self._layout(view)
        lanes = placed(view, layout)
        return tuple(started(view, lanes, others, settings=self.settings))

    def _layout(self, view: View) -> tuple[Layout, list[TrajectoryView]]:
        """Widths for the whole pool, and the requests that got none."""
        starving, dated, undated = self._classes(view)
        pool = _Pool(view, self.settings)
        filled = self._fill(view, dated)
        in_time = {job.trajectory.request_id for job, _ in filled.kept}
        starving = [trajectory for trajectory in starving if trajectory.request_id not in in_time]
        for trajectory in self._due(view, starving):
            pool.give(trajectory, pool.brisk_width(trajectory))
        for job, option in filled.kept:
            pool.give(job.trajectory, 1 if job.trajectory.stage is not Stage.DENOISE else option.width)
        for trajectory, width in share(view, undated, pool.spare, settings=self.settings):
            pool.give(trajectory, width)
        pool.widen([job.trajectory for job, _ in filled.kept], floor=self.settings.efficiency_floor)
        for job in self._late_order(view, filled.given_up):
            pool.give(job.trajectory, pool.brisk_width(job.trajectory))
        pool.widen([*(job.trajectory for job, _ in filled.kept), *undated, *starving], floor=0.0)
        considered = [*starving, *(job.trajectory for job, _ in filled.kept), *undated]
        considered += [job.trajectory for job in filled.given_up]
        # A starving request is in its own class too: it must not be planned twice.
        others = {t.request_id: t for t in considered if t.request_id not in pool.widths}
        return pool.layout, list(others.values())

    def _classes(self, view: View) -> tuple[list[TrajectoryView], list[TrajectoryView], list[TrajectoryView]]:
        """Starving requests, those with a deadline by deadline, those without by priority and arrival."""
        limit, settings = self.settings.max_looked_at, self.settings
        starving, dated, undated = [], [], []
        for trajectory in view.trajectories:
            if trajectory.unserved_s(view.now_s) > settings.starvation_s:
                starving.append(trajectory)
            if trajectory.deadline_s is not None:
                dated.append(trajectory)
            else:
                undated.append(trajectory)
        starving.sort(key=lambda t: (t.served_s, t.request_id))
        dated.sort(key=lambda t: (-t.priority, t.deadline_s, t.request_id))
        undated.sort(key=lambda t: (-t.priority, remaining_s(view.costs, t, 1), t.arrival_s, t.request_id))
        return starving[:limit], dated[:limit], undated[:limit]

    def _due(self, view: View, starving: Sequence[TrajectoryView]) -> list[TrajectoryView]:
        """The one that has starved longest, if it is its turn: the more there are, the longer each waits, so that
        a backlog takes a bounded share of the world and does not turn everything into a queue by age."""
        patience_s = self.settings.starvation_s * (1 + len(starving) / 4)
        return [t for t in starving[:1] if t.unserved_s(view.now_s) > patience_s]

    def _fill(self, view: View, dated: Sequence[TrajectoryView]) -> Filled:
        num_ranks = len(view.ranks)
        jobs = [
            job_of(
                trajectory,
                view.costs,
                widths=self._step_widths(trajectory, num_ranks),
                now_s=view.now_s,
                guard_s=self._guard_s(view, trajectory),
            )
            for trajectory in dated
        ]
        return fill(jobs, num_ranks, now_s=view.now_s)

    def _step_widths(self, trajectory: TrajectoryView, num_ranks: int) -> tuple[int, ...]:
        """The widths that its steps may have, whatever comes next."""
        if trajectory.stage is Stage.DENOISE:
            return options(trajectory, self.settings, num_ranks)
        return trajectory.workload.widths(self.settings.widths, limit=num_ranks)

    def _guard_s(self, view: View, trajectory: TrajectoryView) -> float:
        """The guard counts only as far as it leaves the deadline reachable: a short deadline is not hopeless
        because a guard is long."""
        if not self.settings.deadline_guard_s or trajectory.deadline_s is None:
            return 0.0
        widths = self._step_widths(trajectory, len(view.ranks))
        best_s = min(remaining_s(view.costs, trajectory, width) for width in widths)
        spare_s = trajectory.deadline_s - max(view.now_s, trajectory.ready_s) - best_s
        return min(self.settings.deadline_guard_s, max(0.0, spare_s / 2))

    def _late_order(self, view: View, jobs: Sequence[Job]) -> list[Job]:
        """Requests that will be late: those that end soonest first."""
        return sorted(
            jobs,
            key=lambda job: (remaining_s(view.costs, job.trajectory, 1), job.trajectory.request_id),
        )


class _Pool:
    """Ranks that are given away."""

    def __init__(self, view: View, settings: ElasticSettings) -> None:
        self.view = view
        self.settings = settings
        self.num_ranks = self.spare = len(view.ranks)
        self.widths: dict[str, int] = {}
        self._given: list[TrajectoryView] = []

    @property
    def layout(self) -> Layout:
        return tuple((t, self.widths[t.request_id]) for t in self._given)

    def give(self, trajectory: TrajectoryView, width: int) -> None:
        """Give `width` ranks, or the widest lane that is left; nothing if there is none."""
        possible = [
            w for w in options(trajectory, self.settings, self.num_ranks) if w <= min(width, self.spare)
        ]
        if possible and trajectory.request_id not in self.widths:
            self.widths[trajectory.request_id] = possible[-1]
            self._given.append(trajectory)
            self.spare -= possible[-1]

    def brisk_width(self, trajectory: TrajectoryView) -> int:
        """For work that must not stand in the way: wide, so that its leases are short, but not wasteful."""
        one_s = step_s(self.view.costs, trajectory.workload, 1)
        possible = options(trajectory, self.settings, self.num_ranks)
        worthy = [
            width
            for width in possible
            if one_s >= BRISK_EFFICIENCY * width * step_s(self.view.costs, trajectory.workload, width)
        ]
        return worthy[-1] if worthy else possible[0]

    def widen(self, wanted: Sequence[TrajectoryView], *, floor: float) -> None:
        """Give what is left to those that run, whoever gains most by each rank first, while a wider lane keeps
        `floor` of its efficiency (seconds at one rank, over ranks times seconds)."""
        running = [t for t in wanted if t.request_id in self.widths and t.stage is Stage.DENOISE]
        while self.spare > 0:
            gain, trajectory, wider = max(
                (self._step(t, wider, floor) for t in running for wider in self._wider(t)),
                key=lambda step: step[0],
                default=(0.0, None, 0),
            )
            if trajectory is None or gain <= 0:
                return
            self.spare -= wider - self.widths[trajectory.request_id]
            self.widths[trajectory.request_id] = wider

    def _wider(self, trajectory: TrajectoryView) -> list[int]:
        width = self.widths[trajectory.request_id]
        possible = options(trajectory, self.settings, self.num_ranks)
        return [wider for wider in possible if width < wider <= width + self.spare]

    def _step(
        self, trajectory: TrajectoryView, wider: int, floor: float
    ) -> tuple[float, TrajectoryView, int]:
        costs, width = self.view.costs, self.widths[trajectory.request_id]
        one_s, wide_s = step_s(costs, trajectory.workload, 1), step_s(costs, trajectory.workload, wider)
        if one_s < floor * wider * wide_s:
            return (0.0, trajectory, wider)
        saved_s = remaining_s(costs, trajectory, width) - remaining_s(costs, trajectory, wider)
        if trajectory.lane and wider > len(trajectory.lane):
            saved_s -= self.settings.min_resize_gain_s + self.settings.resize_hysteresis_s
            saved_s -= self.settings.resize_control_cost_s
            saved_s -= costs.migration_s(trajectory.workload.state_bytes)
        return (saved_s / (wider - width), trajectory, wider)
