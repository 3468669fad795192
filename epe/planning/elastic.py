"""The default policy: widths change while requests run, wherever that makes the queue end better.

A layout is thought out over the whole pool, as if every rank were free; then what can start is started.
Only lanes that exchange ranks wait for each other; the others run through.
"""

from __future__ import annotations

from collections.abc import Sequence

from epe.planning.filling import Filled, Job, fill, job_of
from epe.planning.giving import Giving, Layout
from epe.planning.pace import Paces
from epe.planning.placing import Placing
from epe.planning.queue import Queue
from epe.planning.settings import ElasticSettings
from epe.planning.sharing import share
from epe.planning.view import Assignment, TrajectoryView, View

__all__ = ["Elastic", "ElasticSettings"]


class Elastic:
    """Ranks are given in this order: to the request that starves longest, when it is its turn; to deadlines that can
    be met together, each as narrow as it may be; to requests without a deadline, for the least summed latency. What is
    left widens those. Requests that are late anyway run on ranks that nobody wants, as long as nobody does."""

    def __init__(self, settings: ElasticSettings) -> None:
        self.settings = settings
        self._paces: Paces | None = None
        self._queue = Queue(settings)

    def plan(self, view: View) -> tuple[Assignment, ...]:
        if not view.trajectories:
            return ()
        paces = self._paces_of(view)
        queue = self._queue
        queue.show(view, paces)
        free_s = [rank.free_s for rank in view.ranks]
        filled = fill(self._jobs(view, paces, queue.hopeful), free_s, now_s=view.now_s)
        return self._placed(view, paces, queue, filled)

    def _paces_of(self, view: View) -> Paces:
        """Kept until the cost table changes."""
        num_ranks = len(view.ranks)
        if self._paces is None or not self._paces.are_of(view.costs, num_ranks=num_ranks):
            self._paces = Paces(view.costs, widths=self.settings.widths, num_ranks=num_ranks)
        return self._paces

    def _placed(self, view: View, paces: Paces, queue: Queue, filled: Filled) -> tuple[Assignment, ...]:
        """Widths for the whole pool, then ranks for them. Requests that are still to come (in the clairvoyant run of
        the simulator) have their share of the time to come, but no ranks."""
        giving = Giving(view, paces, self.settings)
        kept = [each for each in filled.kept if each.job.trajectory.has_come(view.now_s)]
        in_time = [each.job.trajectory for each in kept]
        undated = [t for t in queue.undated if t.has_come(view.now_s)]
        given_up = sorted((job.trajectory for job in filled.given_up), key=queue.left)
        late = [t for t in (*given_up, *queue.late) if t.has_come(view.now_s)]
        for trajectory in queue.due(in_time):
            giving.give(trajectory, giving.brisk_width(trajectory))
        for each in kept:
            giving.give(each.job.trajectory, each.option.width)
        lacking = [each for each in kept if giving.width(each.job.trajectory) < each.option.width]
        if not lacking:
            for trajectory, width in self._shared(view, paces, undated, giving.spare):
                giving.give(trajectory, width)
        giving.widen(in_time, floor=self.settings.efficiency_floor)
        if not lacking and not late:
            giving.widen([*in_time, *undated, *queue.starving], floor=0.0)
        waiting = {t.request_id: t for t in (*in_time, *undated, *queue.starving, *late)}
        others = [t for t in waiting.values() if not giving.width(t)]
        # Whoever has fewer ranks than its deadline asks for, or is to come, may want more of them soon.
        short = (
            each.job.latest_s for each in filled.kept if giving.width(each.job.trajectory) < each.option.width
        )
        return Placing(view, paces, self.settings, patience_s=queue.patience_s).run(
            giving.layout, others, needed_s=min(short, default=float("inf"))
        )

    def _shared(self, view: View, paces: Paces, undated: Sequence[TrajectoryView], num_ranks: int) -> Layout:
        return share(undated, num_ranks, paces=paces, costs=view.costs, settings=self.settings)

    def _jobs(self, view: View, paces: Paces, hopeful: Sequence[TrajectoryView]) -> list[Job]:
        guard_s, now_s = self.settings.deadline_guard_s, view.now_s
        return [
            job_of(
                t,
                paces.of(t),
                now_s=now_s,
                guard_s=guard_s,
                width=self.settings.fixed_width(t),
                patience_s=self._queue.patience_s,
            )
            for t in hopeful
        ]
