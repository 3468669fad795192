"""From widths to ranks: which ranks a layout takes, what of it can start now, and what fills the ranks that wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from epe.planning.settings import ElasticSettings
from epe.planning.sharing import Layout, options
from epe.planning.view import MAX_LEASES, Assignment, TrajectoryView, View
from epe.planning.work import cost_key, steps_for

Lanes = list[tuple[TrajectoryView, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Hold:
    """Ranks of a lane that are open while others of it are still at work, until `until_s`."""

    trajectory: TrajectoryView
    ranks: tuple[int, ...]
    until_s: float


def placed(view: View, layout: Layout) -> Lanes:
    """Ranks for the widths of a layout: a lane that keeps its width keeps its ranks; the others take ranks
    that hold their state, then those that are free first."""
    free = {rank.rank: rank.free_s for rank in view.ranks}
    lanes: dict[str, tuple[int, ...]] = {}
    for trajectory, width in layout:
        if len(trajectory.lane) == width and free.keys() >= set(trajectory.lane):
            lanes[trajectory.request_id] = trajectory.lane
            for rank in trajectory.lane:
                del free[rank]
    for trajectory, width in layout:
        if trajectory.request_id not in lanes:
            holders = set(trajectory.holders)
            nearest = sorted(free, key=lambda rank: (rank not in holders, free[rank], rank))[:width]
            lanes[trajectory.request_id] = tuple(sorted(nearest))
            for rank in nearest:
                del free[rank]
    return [(trajectory, lanes[trajectory.request_id]) for trajectory, _ in layout]


def started(
    view: View, lanes: Lanes, others: Sequence[TrajectoryView], *, settings: ElasticSettings
) -> Iterator[Assignment]:
    """The lanes that can start now; ranks that must wait for the rest of their lane run what ends before."""
    open_ranks = view.open_ranks
    free_s = {rank.rank: rank.free_s for rank in view.ranks}
    holds = []
    for trajectory, ranks in lanes:
        if trajectory.num_leases >= MAX_LEASES:
            continue
        if open_ranks.issuperset(ranks):
            yield assignment(view, trajectory, ranks, settings=settings)
        elif waiting := tuple(rank for rank in ranks if rank in open_ranks):
            until_s = max(free_s[rank] for rank in ranks)
            holds.append(Hold(trajectory, waiting, until_s))
    yield from _backfilled(view, holds, others, settings=settings)


def assignment(
    view: View, trajectory: TrajectoryView, ranks: tuple[int, ...], *, settings: ElasticSettings
) -> Assignment:
    """The next lease of a request on these ranks, as long as a pulse."""
    num_steps = steps_for(
        view.costs, trajectory, len(ranks), pulse_s=settings.pulse_s, pulse_steps=settings.pulse_steps
    )
    return Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=num_steps)


def _backfilled(
    view: View, holds: Iterable[Hold], others: Sequence[TrajectoryView], *, settings: ElasticSettings
) -> Iterator[Assignment]:
    """For each hold, the held request itself on the ranks that are there, else the first other that fits."""
    idle = [trajectory for trajectory in others if trajectory.num_leases == 0]
    for hold in holds:
        ranks = list(hold.ranks)
        own = [hold.trajectory] if hold.trajectory.num_leases == 0 else []
        for trajectory in (*own, *idle):
            width = _widest(view, trajectory, len(ranks), hold.until_s, settings=settings)
            if width:
                yield assignment(view, trajectory, tuple(ranks[:width]), settings=settings)
                ranks = ranks[width:]
                idle = [other for other in idle if other is not trajectory]
            if not ranks:
                break


def _widest(
    view: View, trajectory: TrajectoryView, limit: int, until_s: float, *, settings: ElasticSettings
) -> int:
    """The widest lane of at most `limit` ranks on which the next lease ends in time; 0 if there is none."""
    for width in reversed(options(trajectory, settings, limit)):
        if width > limit:
            continue
        steps = steps_for(
            view.costs, trajectory, width, pulse_s=settings.pulse_s, pulse_steps=settings.pulse_steps
        )
        seconds = view.costs.seconds(cost_key(trajectory.workload, trajectory.stage, width))
        if view.now_s + seconds * max(1, steps) <= until_s:
            return width
    return 0
