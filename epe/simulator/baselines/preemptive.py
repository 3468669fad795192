"""Preemption without elasticity: widths are fixed for each class, but every step boundary asks anew who runs.

The control that papers on elastic widths leave out: what is gained by stopping and resuming alone.
EDF is Liu and Layland's rule (JACM 1973), SRTF Schrage's (Operations Research 1968), both on lanes.
"""

from __future__ import annotations

from collections.abc import Iterable

from epe.planning.draft import Draft
from epe.planning.view import Assignment, TrajectoryView, View
from epe.simulator.baselines.serving import a_pulse, by_deadline, serve
from epe.simulator.baselines.settings import BaselineSettings


class PreemptiveEdf:
    """Earliest deadline first."""

    def __init__(self, settings: BaselineSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        if not draft.free:
            return ()
        return _served(draft, by_deadline(draft, late_last=self.settings.late_last), self.settings)


class PreemptiveSrtf:
    """Shortest remaining time first, at the width that the request will have."""

    def __init__(self, settings: BaselineSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        if not draft.free:
            return ()

        def left(trajectory: TrajectoryView) -> tuple[float, float, str]:
            speed = draft.speeds.of(trajectory)
            width = self.settings.fixed_width(trajectory.workload, speed)
            return speed.remaining_s(trajectory, width), trajectory.arrival_s, trajectory.request_id

        return _served(draft, sorted(view.trajectories, key=left), self.settings)


def _served(
    draft: Draft, order: Iterable[TrajectoryView], settings: BaselineSettings
) -> tuple[Assignment, ...]:
    wants = (
        a_pulse(t, settings.fixed_width(t.workload, draft.speeds.of(t))) for t in order if draft.may_start(t)
    )
    serve(draft, wants, hold=settings.hold)
    return draft.plan
