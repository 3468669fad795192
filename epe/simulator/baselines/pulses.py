"""The reference EPE (ChituDiffusion's elastic service): aligned lanes, and all ranks meet at the end of each pulse."""

from __future__ import annotations

from collections.abc import Iterable

from epe.messages import Stage
from epe.planning.draft import Draft
from epe.planning.view import Assignment, TrajectoryView, View
from epe.simulator.baselines.layouts import Lane, Layout, Search
from epe.simulator.baselines.settings import BaselineSettings


class Pulses:
    """At a pulse, when every rank is idle, a bounded search over layouts decides. Each lane then runs as many steps
    as fit into `pulse_steps` of the slowest lane (at least into `pulse_s`). A lane encodes and decodes with all of
    its ranks within the pulse; nothing else starts before all have ended.
    """

    def __init__(self, settings: BaselineSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        idle = {rank.rank for rank in view.ranks if rank.num_leases == 0}
        draft.free &= idle
        self._go_on(draft)
        if len(idle) == len(view.ranks) and not draft.assignments and view.trajectories:
            layout = Search(draft, self.settings).best()
            pulse_s = self._pulse_s(draft, layout)
            for trajectory, lane in layout:
                self._run(draft, trajectory, lane, pulse_s)
        return draft.plan

    def _go_on(self, draft: Draft) -> None:
        """What was encoded takes its first steps, and what is denoised is decoded, on the same lane."""
        running = [(t, t.lane) for t in draft.view.trajectories if t.num_leases and t.lane]
        for trajectory in draft.view.trajectories:
            changes_stage = trajectory.stage is Stage.DECODE or trajectory.step == 0
            if trajectory.num_leases or not trajectory.lane or not changes_stage:
                continue
            if draft.free.issuperset(trajectory.lane):
                self._run(draft, trajectory, trajectory.lane, self._pulse_s(draft, running))

    def _run(self, draft: Draft, trajectory: TrajectoryView, lane: Lane, pulse_s: float) -> None:
        steps = max(1, round(pulse_s / draft.speeds.of(trajectory).step_s(len(lane))))
        left = trajectory.num_steps - trajectory.step
        draft.start(trajectory, lane, num_steps=min(steps, left) if trajectory.stage is Stage.DENOISE else 0)

    def _pulse_s(self, draft: Draft, layout: Layout | Iterable[tuple[TrajectoryView, Lane]]) -> float:
        steps = [draft.speeds.of(t).step_s(len(lane)) for t, lane in layout]
        return max(self.settings.pulse_s, self.settings.pulse_steps * max(steps, default=0.0))
