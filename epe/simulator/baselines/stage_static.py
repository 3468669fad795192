"""Stages apart, widths fixed: the "stage-level" baselines of TridentServe (arXiv 2510.02838) with deadlines.

Encode and decode take one rank, denoising the tuned width of its class in one piece; tasks go in deadline order.
"""

from __future__ import annotations

from epe.planning.view import Assignment, View
from epe.simulator.baselines.serving import a_stage, by_deadline, serve
from epe.simulator.baselines.settings import BaselineSettings


class StageStatic:
    """Nothing is interrupted; a task that lacks ranks holds the idle ones, and what ends before may use them."""

    def __init__(self, settings: BaselineSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        if not draft.free:
            return ()
        wants = (
            a_stage(t, self.settings.fixed_width(t.workload, draft.speeds.of(t)))
            for t in by_deadline(draft, late_last=self.settings.late_last)
            if draft.may_start(t)
        )
        serve(draft, wants, hold=self.settings.hold)
        return draft.plan
