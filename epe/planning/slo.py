"""The policy `slo`: as many deadlines as possible, by a rule that fits on a page.

GF-DiT's EDF best-fit (arXiv 2606.13501) with what it lacks: late requests go last, and widths are chosen over the
whole world, not over the ranks that happen to be free.
"""

from __future__ import annotations

from epe.planning.draft import Draft
from epe.planning.pool import Assembly, PoolSettings, targets_for, widened
from epe.planning.throughput import saved_s, thrifty_width
from epe.planning.view import Assignment, TrajectoryView, View

NEVER_S = float("inf")


class Slo:
    """Earliest deadline first, each request at the narrowest width that still ends in time; then those without a
    deadline, then those that are late anyway, shortest first and at the width that spends least. Ranks left over
    widen whoever has least time to spare."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        if not draft.free:
            return ()

        def urgency(trajectory: TrajectoryView) -> tuple[float, float, float]:
            if self._spare_s(draft, trajectory) < 0:
                return 1.0, draft.speeds.of(trajectory).best_s(trajectory), trajectory.arrival_s
            deadline_s = NEVER_S if trajectory.deadline_s is None else trajectory.deadline_s
            return 0.0, deadline_s, trajectory.arrival_s

        order = self.settings.first(draft, urgency)
        targets, spare = targets_for(order, len(view.ranks), lambda t, spare: self._width(draft, t, spare))
        targets = widened(targets, spare, lambda t, a, b: self._gain(draft, t, a, b), speeds=draft.speeds)
        Assembly(draft).run(targets, order)
        return draft.plan

    def _spare_s(self, draft: Draft, trajectory: TrajectoryView, width: int | None = None) -> float:
        """Seconds between the finish at a width (the fastest, if not given) and the deadline."""
        if trajectory.deadline_s is None:
            return NEVER_S
        speed = draft.speeds.of(trajectory)
        begin_s = max(draft.view.now_s, trajectory.ready_s)
        return trajectory.deadline_s - begin_s - speed.safe_remaining_s(trajectory, width or speed.fastest)

    def _width(self, draft: Draft, trajectory: TrajectoryView, spare: int) -> int:
        most_s = self._spare_s(draft, trajectory)
        if trajectory.deadline_s is None or most_s < 0:
            return thrifty_width(draft, trajectory, spare)
        # A long guard does not make a short deadline hopeless: it counts for half of what there is to spare at most.
        guard_s = min(self.settings.deadline_guard_s, most_s / 2)
        fitting = draft.speeds.of(trajectory).within(spare)
        in_time = (width for width in fitting if self._spare_s(draft, trajectory, width) >= guard_s)
        return next(in_time, fitting[-1] if fitting else 0)

    def _gain(self, draft: Draft, trajectory: TrajectoryView, width: int, wider: int) -> float:
        """Seconds saved, weighed by how little time there is to spare."""
        spare_s = max(0.0, self._spare_s(draft, trajectory, width))
        weight = 0.0 if spare_s == NEVER_S else 1 / (1.0 + spare_s)
        return saved_s(draft, trajectory, width, wider) * max(weight, 1e-6)
