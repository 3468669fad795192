"""GF-DiT's deadline policy, EDF best-fit (arXiv 2606.13501; its public repository, policy edf_best_fit)."""

from __future__ import annotations

from epe.messages import Stage
from epe.planning.draft import Draft
from epe.planning.view import Assignment, TrajectoryView, View
from epe.simulator.baselines.serving import by_deadline, deadline_s
from epe.simulator.baselines.settings import BaselineSettings


class EdfBestFit:
    """Looks at free ranks only. In deadline order each request gets the narrowest width that still ends in time,
    or, if none does, the one that ends soonest; what is left widens, again in deadline order, as long as that is
    faster. One rank for encode and decode. Without a deadline a request gets the widest lane that fits."""

    def __init__(self, settings: BaselineSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        budget = len(draft.free)
        if not budget:
            return ()
        layout: list[tuple[TrajectoryView, int]] = []
        for trajectory in by_deadline(draft, late_last=self.settings.late_last):
            width = self._fitting(draft, trajectory, budget) if draft.may_start(trajectory) else 0
            if width:
                layout.append((trajectory, width))
                budget -= width
            if not budget:
                break
        draft.start_all(widened(draft, layout, budget))
        return draft.plan

    def _fitting(self, draft: Draft, trajectory: TrajectoryView, budget: int) -> int:
        if trajectory.stage is not Stage.DENOISE:
            return 1
        speed = draft.speeds.of(trajectory)
        widths = [width for width in speed.widths if width <= budget]
        if not widths:
            return 0
        if trajectory.deadline_s is None:
            return widths[-1]
        left_s = deadline_s(trajectory) - draft.view.now_s
        in_time = (width for width in widths if speed.remaining_s(trajectory, width) <= left_s)
        return next(in_time, min(widths, key=lambda width: speed.step_s(width)))


def widened(
    draft: Draft, layout: list[tuple[TrajectoryView, int]], budget: int
) -> list[tuple[TrajectoryView, int]]:
    """Give what is left, one rung at a time, always to the first request of the layout that gets faster by it."""
    widths = [width for _, width in layout]
    place = 0
    while budget > 0 and place < len(layout):
        trajectory, width = layout[place][0], widths[place]
        speed = draft.speeds.of(trajectory)
        wider = [
            each
            for each in speed.widths
            if width < each <= width + budget and speed.step_s(each) < speed.step_s(width)
        ]
        if trajectory.stage is Stage.DENOISE and wider:
            widths[place] = wider[0]
            budget -= wider[0] - width
        else:
            place += 1
    return [(trajectory, width) for (trajectory, _), width in zip(layout, widths, strict=True)]
