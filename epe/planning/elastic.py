"""The default policy: widths change while requests run, wherever that makes the queue end better.

A layout is thought out over the whole pool, as if every rank were free; then what can start is started.
Only lanes that exchange ranks wait for each other; the others run through.
"""

from __future__ import annotations

from collections.abc import Sequence

from epe.planning.filling import Job, fill, job_of
from epe.planning.giving import Giving
from epe.planning.pace import Paces
from epe.planning.placing import Placing
from epe.planning.queue import Queue
from epe.planning.settings import ElasticSettings
from epe.planning.sharing import share
from epe.planning.view import Assignment, TrajectoryView, View

__all__ = ["Elastic", "ElasticSettings"]


class Elastic:
    """In this order: requests that starve (one at a time, so that a backlog does not turn everything into a
    queue by age); deadlines that can be met together, each as narrow as it may be;
    requests without a deadline, for the least summed latency; then what is left widens those that run, and
    those that are late anyway go last."""

    def __init__(self, settings: ElasticSettings) -> None:
        self.settings = settings
        self._paces: Paces | None = None

    def plan(self, view: View) -> tuple[Assignment, ...]:
        if not view.trajectories:
            return ()
        paces = self._paces_of(view)
        queue = Queue(view, paces, self.settings)
        giving, others = self._layout(view, paces, queue)
        placing = Placing(view, paces, self.settings)
        return placing.run(giving.layout, others)

    def _paces_of(self, view: View) -> Paces:
        """Kept until the cost table changes."""
        num_ranks = len(view.ranks)
        if self._paces is None or not self._paces.are_of(view.costs, num_ranks=num_ranks):
            self._paces = Paces(view.costs, widths=self.settings.widths, num_ranks=num_ranks)
        return self._paces

    def _layout(self, view: View, paces: Paces, queue: Queue) -> tuple[Giving, list[TrajectoryView]]:
        """Widths for the whole pool, and who is to fill ranks that are left or wait, in this order."""
        settings = self.settings
        giving = Giving(view, paces, settings)
        kept, given_up = fill(self._jobs(view, paces, queue.hopeful), len(view.ranks), now_s=view.now_s)
        in_time = [each.job.trajectory for each in kept]
        for trajectory in queue.due(in_time):
            giving.give(trajectory, giving.brisk_width(trajectory))
        for each in kept:
            giving.give(each.job.trajectory, each.option.width)
        for trajectory, width in share(view, queue.undated, giving.spare, settings=settings):
            giving.give(trajectory, width)
        giving.widen(in_time, floor=settings.efficiency_floor)
        late = sorted((job.trajectory for job in given_up), key=queue.left) + queue.late
        for trajectory in late:
            giving.give(trajectory, giving.brisk_width(trajectory))
        giving.widen([*in_time, *queue.undated, *queue.starving], floor=0.0)
        considered = {t.request_id: t for t in (*in_time, *queue.undated, *queue.starving, *late)}
        return giving, [t for name, t in considered.items() if name not in giving.widths]

    def _jobs(self, view: View, paces: Paces, hopeful: Sequence[TrajectoryView]) -> list[Job]:
        guard_s, now_s = self.settings.deadline_guard_s, view.now_s
        return [
            job_of(t, paces.of(t), now_s=now_s, guard_s=guard_s, width=self.settings.fixed_width(t))
            for t in hopeful
        ]
