"""RSSP (a baseline of TetriServe, arXiv 2510.01565, section 6): one tuned width a class, whole requests in order.

Requests run on any ranks that are free, first come first served, and are never interrupted.
"""

from __future__ import annotations

from epe.messages import Stage
from epe.planning.draft import Draft
from epe.planning.order import by_arrival
from epe.planning.view import Assignment, TrajectoryView, View
from epe.simulator.baselines.serving import Want, serve
from epe.simulator.baselines.settings import BaselineSettings


class Rssp:
    """A request keeps all ranks of its lane from its encode to its decode. The first that lacks ranks holds its
    place; later ones pass it only where that does not delay it (kinder than the plain queue of the paper)."""

    def __init__(self, settings: BaselineSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        if not draft.free:
            return ()
        order = by_arrival(view)
        begun = [t for t in order if t.lane]
        for trajectory in begun:
            if draft.may_start(trajectory) and draft.free.issuperset(trajectory.lane):
                draft.start(trajectory, trajectory.lane, num_steps=_whole(trajectory))
        for trajectory in begun:
            self._occupy(draft, trajectory)
        waiting = (self._want(draft, t) for t in order if not t.lane)
        serve(draft, waiting, hold=self.settings.hold)
        return draft.plan

    def _occupy(self, draft: Draft, trajectory: TrajectoryView) -> None:
        """The lane is not free after the lease that it has, but after the decode."""
        speed = draft.speeds.of(trajectory)
        width = len(trajectory.lane)
        end_s = max(draft.view.now_s, trajectory.ready_s) + speed.remaining_s(trajectory, width)
        for rank in trajectory.lane:
            draft.until_s[rank] = end_s

    def _want(self, draft: Draft, trajectory: TrajectoryView) -> Want:
        speed = draft.speeds.of(trajectory)
        width = self.settings.fixed_width(trajectory.workload, speed)
        return Want(
            trajectory=trajectory,
            width=width,
            seconds=speed.remaining_s(trajectory, width),
            num_steps=_whole(trajectory),
        )


def _whole(trajectory: TrajectoryView) -> int:
    return trajectory.num_steps - trajectory.step if trajectory.stage is Stage.DENOISE else 0
