"""The bounded search over aligned lanes of EPE's reference planner."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice

from epe.planning.draft import Draft
from epe.planning.forecast import played
from epe.planning.speeds import Speed
from epe.planning.view import TrajectoryView, View
from epe.simulator.baselines.serving import begin_s, deadline_s
from epe.simulator.baselines.settings import BaselineSettings

Lane = tuple[int, ...]
Layout = tuple[tuple[TrajectoryView, Lane], ...]


class Search:
    """Candidates are the present lanes, one width for all, and then, depth first and wide lanes first, up to
    `max_layouts` others. They are compared by deadlines missed, lateness, starved requests, normalised throughput,
    moves and idle ranks. As many requests as twice the ranks are looked at.
    """

    def __init__(self, draft: Draft, settings: BaselineSettings) -> None:
        self.draft = draft
        self.settings = settings
        self.now_s = draft.view.now_s
        self.num_ranks = len(draft.view.ranks)
        self.order = nsmallest(2 * self.num_ranks, draft.view.trajectories, key=self._urgency)
        self.lanes = aligned(draft.view, settings.widths)
        self._speed = {t.request_id: draft.speeds.of(t) for t in self.order}
        self._end_s = {t.request_id: self._ends_s(t) for t in self.order}
        self._dated = [self._waits(t) for t in self.order if t.deadline_s is not None]
        self._pace = {t.request_id: _paces(self._speed[t.request_id]) for t in self.order}
        self._starved = {t.request_id for t in self.order if t.unserved_s(self.now_s) > settings.starvation_s}
        self._present = {rank for t in self.order for rank in t.lane}

    def best(self) -> Layout:
        """The first of the best layouts."""
        best: Layout = ()
        best_score: tuple[float, ...] = (math.inf,)
        for layout in self._layouts():
            score = self._score(layout, most_late=best_score[0]) if layout else None
            if score is not None and score < best_score:
                best, best_score = layout, score
        return best

    def _urgency(self, trajectory: TrajectoryView) -> tuple[int, bool, float, float, str]:
        """Larger priority, then those with a deadline by slack, then the others by what is left of them."""
        best_s = self.draft.speeds.of(trajectory).best_s(trajectory)
        undated = trajectory.deadline_s is None
        spare_s = deadline_s(trajectory) - begin_s(self.draft, trajectory) - best_s
        slack_s = best_s if undated else spare_s
        return (-trajectory.priority, undated, slack_s, trajectory.arrival_s, trajectory.request_id)

    def _layouts(self) -> Iterator[Layout]:
        yield self._kept()
        for width in sorted(self.settings.widths, reverse=True):
            able = [t for t in self.order if width in self._speed[t.request_id].widths]
            yield tuple(zip(able, (lane for lane in self.lanes if len(lane) == width), strict=False))
        yield from islice(self._deeper(self.order, self.lanes, ()), self.settings.max_layouts)

    def _kept(self) -> Layout:
        """Running requests on their lanes, the next ones on the widest that is left."""
        layout: list[tuple[TrajectoryView, Lane]] = []
        lanes = self.lanes
        for trajectory in sorted(self.order, key=lambda t: not t.lane):
            usable = [lane for lane in lanes if len(lane) in self._speed[trajectory.request_id].widths]
            if usable:
                lane = trajectory.lane if trajectory.lane in usable else usable[0]
                layout.append((trajectory, lane))
                lanes = _apart(lanes, lane)
        return tuple(layout)

    def _deeper(self, order: list[TrajectoryView], lanes: list[Lane], layout: Layout) -> Iterator[Layout]:
        if not order or not lanes:
            yield layout
            return
        for lane in self._distinct(order[0], lanes):
            if self._may_take(order[0], lane, lanes):
                yield from self._deeper(order[1:], _apart(lanes, lane), (*layout, (order[0], lane)))
        yield from self._deeper(order[1:], lanes, layout)

    def _distinct(self, trajectory: TrajectoryView, lanes: list[Lane]) -> list[Lane]:
        """Lanes of one width are alike but for who ran there: the one that overlaps most of a request's own last
        lane and least of the others' stands for them."""
        own = set(trajectory.lane)
        by_width: dict[int, Lane] = {}
        for lane in sorted(lanes, key=lambda lane: (-len(own.intersection(lane)), self._foreign(own, lane))):
            by_width.setdefault(len(lane), lane)
        return [by_width[width] for width in sorted(by_width, reverse=True)]

    def _foreign(self, own: set[int], lane: Lane) -> int:
        """Ranks of a lane on which others ran."""
        return len((self._present - own).intersection(lane))

    def _may_take(self, trajectory: TrajectoryView, lane: Lane, lanes: list[Lane]) -> bool:
        """A request that has run keeps its lane while it is there, narrows, or widens if that repays the move."""
        speed, width, present = self._speed[trajectory.request_id], len(lane), len(trajectory.lane)
        if width not in speed.widths or not present or lane == trajectory.lane:
            return width in speed.widths
        if width <= present:
            return width < present or trajectory.lane not in lanes
        saved_s = speed.remaining_s(trajectory, present) - speed.remaining_s(trajectory, width)
        return saved_s > self.draft.view.costs.migration_s(trajectory.workload.state_bytes)

    def _score(self, layout: Layout, *, most_late: float) -> tuple[float, ...] | None:
        """Smaller is better; None as soon as more than `most_late` requests miss their deadlines."""
        inside = {t.request_id for t, _ in layout}
        num_late, late_s = 0, 0.0
        for over_s in self._tardiness_s(layout, inside):
            if over_s > 0:
                num_late, late_s = num_late + 1, late_s + over_s
                if num_late > most_late:
                    return None
        starved = len(self._starved - inside)
        throughput = sum(self._pace[t.request_id][len(lane)] for t, lane in layout)
        moves = sum(bool(t.lane) and t.lane != lane for t, lane in layout)
        idle = self.num_ranks - sum(len(lane) for _, lane in layout)
        return (num_late, late_s, starved, -throughput, moves, idle)

    def _tardiness_s(self, layout: Layout, inside: set[str]) -> Iterator[float]:
        """How much later than its deadline each request ends when the layout runs to its end and the others follow
        at their fastest width (negative if it is in time)."""
        free = [self.now_s] * (self.num_ranks - sum(len(lane) for _, lane in layout))
        for trajectory, lane in layout:
            end_s = self._end_s[trajectory.request_id][len(lane)]
            free += [end_s] * len(lane)
            yield end_s - deadline_s(trajectory)
        rest = [each for each in self._dated if each[0] not in inside]
        ends_s = played(free, ((width, left_s) for _, _, width, left_s in rest))
        for (_, until_s, _, _), end_s in zip(rest, ends_s, strict=True):
            yield end_s - until_s

    def _waits(self, trajectory: TrajectoryView) -> tuple[str, float, int, float]:
        """Its id, its deadline, and the width and seconds at which it follows when it has to wait."""
        speed = self._speed[trajectory.request_id]
        left_s = speed.remaining_s(trajectory, speed.fastest)
        return trajectory.request_id, deadline_s(trajectory), speed.fastest, left_s

    def _ends_s(self, trajectory: TrajectoryView) -> dict[int, float]:
        """When it ends at each width, if it runs from now on."""
        speed = self._speed[trajectory.request_id]
        return {width: self.now_s + speed.remaining_s(trajectory, width) for width in self.settings.widths}


def _paces(speed: Speed) -> dict[int, float]:
    """The share of the fastest pace at each width."""
    return {width: speed.step_s(speed.fastest) / speed.step_s(width) for width in speed.widths}


def aligned(view: View, widths: tuple[int, ...]) -> list[Lane]:
    """The lanes that start at a multiple of their width, wide ones first."""
    ranks = [rank.rank for rank in view.ranks]
    return [
        tuple(ranks[first : first + width])
        for width in sorted(widths, reverse=True)
        for first in range(0, len(ranks) - width + 1, width)
    ]


def _apart(lanes: list[Lane], taken: Lane) -> list[Lane]:
    return [lane for lane in lanes if not set(lane).intersection(taken)]
