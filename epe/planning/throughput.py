"""The policy `throughput`: as many requests as possible out of every rank-second."""

from __future__ import annotations

from epe.planning.draft import Draft
from epe.planning.pool import Assembly, PoolSettings, targets_for, widened
from epe.planning.view import Assignment, TrajectoryView, View


class Throughput:
    """Least remaining rank-seconds first, each request at the width that spends the fewest; a wider lane only where
    a rank would idle. Deadlines are not looked at."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        if not draft.free:
            return ()
        speeds = draft.speeds

        def work(trajectory: TrajectoryView) -> tuple[float, float]:
            speed = speeds.of(trajectory)
            return speed.thrifty * speed.remaining_s(trajectory, speed.thrifty), trajectory.arrival_s

        order = self.settings.first(draft, work)
        targets, spare = targets_for(order, len(view.ranks), lambda t, spare: thrifty_width(draft, t, spare))
        targets = widened(targets, spare, lambda t, a, b: saved_s(draft, t, a, b), speeds=speeds)
        Assembly(draft).run(targets, order)
        return draft.plan


def thrifty_width(draft: Draft, trajectory: TrajectoryView, spare: int) -> int:
    """The width that spends the fewest rank-seconds, or the widest that is left; 0 if none is."""
    speed = draft.speeds.of(trajectory)
    return max(speed.within(min(speed.thrifty, spare)), default=0)


def saved_s(draft: Draft, trajectory: TrajectoryView, width: int, wider: int) -> float:
    """Seconds that a wider lane saves on what is left of a request."""
    speed = draft.speeds.of(trajectory)
    return speed.remaining_s(trajectory, width) - speed.remaining_s(trajectory, wider)
