"""GENSERVE's joint choice for pictures beside videos (arXiv 2604.04335): hold, resume or resize by a knapsack.

Known from its abstract and from notes on the paper. Its batches of pictures are left out, since leases have none.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from epe.messages import Stage
from epe.planning.draft import Draft
from epe.planning.view import Assignment, TrajectoryView, View
from epe.simulator.baselines.gfdit import widened
from epe.simulator.baselines.serving import (
    MAX_TRIED,
    assemble,
    begin_s,
    by_deadline,
    deadline_s,
    serve_other_stages,
)
from epe.simulator.baselines.settings import BaselineSettings

# What breaks ties between equally many deadlines: keep a width, and spend few ranks.
_SWITCH = 1e-3
_RANK = 1e-5


class Action(NamedTuple):
    """What a video may do next: nothing (width 0), or run at a width."""

    width: int
    value: float


class GenServe:
    """A picture is a request that no second rank makes faster; all others are videos. The actions of the videos
    are anchored at hold, the present width and the other widths; a knapsack over the ranks weighs the videos
    that stay in time against the pictures that the ranks left over can serve in time."""

    def __init__(self, settings: BaselineSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        if not draft.free:
            return ()
        order = by_deadline(draft, late_last=self.settings.late_last)
        serve_other_stages(draft, [t for t in order if t.stage is Stage.DECODE])
        active = [t for t in order if t.stage is not Stage.DECODE]
        pictures = [t for t in active if draft.speeds.of(t).fastest == 1]
        videos = [t for t in active if draft.speeds.of(t).fastest > 1]
        widths = self._chosen(draft, videos, room(draft, pictures))
        layout = _layout(draft, active, pictures, widths)
        assemble(draft, layout, hold=self.settings.hold)
        return draft.plan

    def _chosen(self, draft: Draft, videos: list[TrajectoryView], room_for: list[int]) -> dict[str, int]:
        """The width of each video that runs."""
        capacity = len(draft.view.ranks)
        videos = videos[:MAX_TRIED]
        values, widths = knapsack([_actions(draft, video) for video in videos], capacity)
        ranks = max(
            range(capacity + 1), key=lambda ranks: (values[ranks] + room_for[capacity - ranks], -ranks)
        )
        chosen = {}
        for video, by_ranks in zip(reversed(videos), reversed(widths), strict=True):
            if width := by_ranks[ranks]:
                chosen[video.request_id] = width
                ranks -= width
        return chosen


def knapsack(choices: list[list[Action]], capacity: int) -> tuple[list[float], list[list[int]]]:
    """The best sum of values for 0, 1, ... `capacity` ranks with one action of each list (holding comes first), and
    the width that each list then takes of them."""
    values, widths = [0.0] * (capacity + 1), []
    for hold, *others in choices:
        best, taken = [hold.value + value for value in values], [0] * (capacity + 1)
        for width, value in others:
            for ranks in range(width, capacity + 1):
                if (total := value + values[ranks - width]) > best[ranks]:
                    best[ranks], taken[ranks] = total, width
        values = best
        widths.append(taken)
    return values, widths


def _actions(draft: Draft, video: TrajectoryView) -> list[Action]:
    """Each is worth one if the video can still be in time after it."""
    speed = draft.speeds.of(video)
    left_s = deadline_s(video) - begin_s(draft, video)
    waits_s = draft.lease_s(video, speed.fastest)
    actions = [Action(0, float(waits_s + speed.best_s(video) <= left_s))]
    for width in speed.within(len(draft.view.ranks)):
        in_time = speed.remaining_s(video, width) <= left_s
        ranks = width if video.stage is Stage.DENOISE else 1
        switches = video.stage is Stage.DENOISE and video.step > 0 and width != len(video.lane)
        actions.append(Action(ranks, in_time - _SWITCH * switches - _RANK * width))
    return actions


def room(draft: Draft, pictures: list[TrajectoryView]) -> list[int]:
    """How many pictures end in time if 0, 1, 2, ... ranks serve them in the order given."""
    jobs = [(begin_s(draft, t), draft.speeds.of(t).best_s(t), deadline_s(t)) for t in pictures[:MAX_TRIED]]
    return [0, *(_in_time(jobs, draft.view.now_s, ranks) for ranks in range(1, len(draft.view.ranks) + 1))]


def _in_time(jobs: list[tuple[float, float, float]], now_s: float, num_ranks: int) -> int:
    free = [now_s] * num_ranks
    num_in_time = 0
    for start_s, seconds, until_s in jobs:
        end_s = max(free[0], start_s) + seconds
        if end_s <= until_s:
            num_in_time += 1
            heapq.heapreplace(free, end_s)
    return num_in_time


def _layout(
    draft: Draft, active: list[TrajectoryView], pictures: list[TrajectoryView], widths: dict[str, int]
) -> list[tuple[TrajectoryView, int]]:
    """Videos as chosen, pictures on the ranks left, then held videos; what nobody takes widens."""
    spare = len(draft.view.ranks) - sum(widths.values())
    held = [t for t in active if t.request_id not in widths and draft.speeds.of(t).fastest > 1]
    widths = dict(widths)
    for trajectory in (*pictures, *held):
        width = 1 if trajectory.stage is not Stage.DENOISE else draft.speeds.of(trajectory).ladder[0]
        if width <= spare:
            widths[trajectory.request_id] = width
            spare -= width
    layout = [(t, widths[t.request_id]) for t in active if t.request_id in widths]
    return widened(draft, layout, spare)
