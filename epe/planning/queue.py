"""Who is looked at: of each kind of request the most urgent few, so that a long queue does not make a plan slow."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from epe.planning.pace import Paces
from epe.planning.settings import ElasticSettings
from epe.planning.view import TrajectoryView, View


class Queue:
    def __init__(self, view: View, paces: Paces, settings: ElasticSettings) -> None:
        self.view = view
        self.paces = paces
        self.settings = settings
        limit, now_s = settings.max_looked_at, view.now_s
        hopeful, late, undated, starving = [], [], [], []
        for t in view.trajectories:
            if t.deadline_s is None:
                undated.append(t)
            elif max(now_s, t.ready_s) + paces.of(t).best_s(t) > t.deadline_s:
                late.append(t)
            else:
                hopeful.append(t)
            if t.unserved_s(now_s) > settings.starvation_s:
                starving.append(t)
        self.hopeful = nsmallest(limit, hopeful, key=lambda t: (-t.priority, t.deadline_s, t.request_id))
        self.late = nsmallest(limit, late, key=self.left)
        self.undated = nsmallest(limit, undated, key=lambda t: (-t.priority, *self.left(t)))
        self.num_starving = len(starving)
        self.starving = nsmallest(limit, starving, key=lambda t: (t.served_s, t.request_id))

    def left(self, trajectory: TrajectoryView) -> tuple[float, float, str]:
        """What is left of a request on one rank: those that end soonest first."""
        pace = self.paces.of(trajectory)
        return (pace.remaining_s(trajectory, pace.widths[0]), trajectory.arrival_s, trajectory.request_id)

    def due(self, in_time: Iterable[TrajectoryView]) -> list[TrajectoryView]:
        """The one that has starved longest, if it is its turn: the more there are, the longer each waits, so that
        a backlog takes a bounded share of the world and does not turn everything into a queue by age."""
        names = {t.request_id for t in in_time}
        first = [t for t in self.starving if t.request_id not in names][:1]
        patience_s = self.settings.starvation_s * (1 + self.num_starving / 4)
        return [t for t in first if t.unserved_s(self.view.now_s) > patience_s]
