"""heSRPT (Berg, Vesilo, Harchol-Balter, SIGMETRICS'20) on whole ranks, for loads without deadlines."""

from __future__ import annotations

from epe.messages import Stage
from epe.planning.latency import shared
from epe.planning.view import Assignment, TrajectoryView, View
from epe.simulator.baselines.serving import assemble, serve_other_stages
from epe.simulator.baselines.settings import BaselineSettings


class HeSrpt:
    """Least work first; widths are the shares of the theorem for all requests, rounded to the widths there are.
    Ranks that rounding leaves idle stay idle: what EPE's `latency` adds is not in the paper."""

    def __init__(self, settings: BaselineSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        if not draft.free:
            return ()

        def left(trajectory: TrajectoryView) -> tuple[float, float, str]:
            speed = draft.speeds.of(trajectory)
            return speed.best_s(trajectory), trajectory.arrival_s, trajectory.request_id

        order = sorted(view.trajectories, key=left)
        serve_other_stages(draft, [t for t in order if t.stage is Stage.DECODE])
        layout, _ = shared(draft, [t for t in order if t.stage is not Stage.DECODE])
        assemble(draft, layout, hold=self.settings.hold)
        return draft.plan
