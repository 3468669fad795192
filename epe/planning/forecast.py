"""When things will end, if the queue is played forward on the cost table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from epe.messages import Stage
from epe.planning.costs import CostTable, Workload
from epe.planning.view import TrajectoryView, View
from epe.planning.work import remaining_s


def play(free_s: Iterable[float], jobs: Iterable[tuple[int, float]]) -> list[float]:
    """Finish times of `(width, seconds)` jobs that start in order, each on the ranks that are free first."""
    return list(played(free_s, jobs))


def played(free_s: Iterable[float], jobs: Iterable[tuple[int, float]]) -> Iterator[float]:
    """`play`, one job at a time, for whoever may stop early."""
    free = sorted(free_s)
    for width, seconds in jobs:
        finish = free[min(width, len(free)) - 1] + seconds
        free[:width] = [finish] * min(width, len(free))
        free.sort()
        yield finish


def fastest_width(costs: CostTable, trajectory: TrajectoryView, widths: tuple[int, ...]) -> int:
    """The width at which what is left ends soonest; the narrowest of equals."""
    return min(widths, key=lambda width: (remaining_s(costs, trajectory, width), width))


def predicted_finish_s(view: View, request_id: str, widths: tuple[int, ...]) -> float:
    """When a request will end if everything before it in the view's order runs at one fair width."""
    ahead = []
    for trajectory in view.trajectories:
        ahead.append(trajectory)
        if trajectory.request_id == request_id:
            break
    share = max(1, len(view.ranks) // max(1, len(view.trajectories)))
    fair = [width for width in widths if width <= share] or [min(widths)]
    # Of thousands that wait, most are alike.
    known: dict[tuple[Workload, Stage, int], tuple[int, float]] = {}
    jobs = []
    for trajectory in ahead:
        alike = (trajectory.workload, trajectory.stage, trajectory.num_steps - trajectory.step)
        if alike not in known:
            width = fastest_width(view.costs, trajectory, tuple(fair))
            known[alike] = (width, remaining_s(view.costs, trajectory, width))
        jobs.append(known[alike])
    finishes = play([max(rank.free_s, view.now_s) for rank in view.ranks], jobs)
    return finishes[-1] if finishes else view.now_s
