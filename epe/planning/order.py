"""In which order requests are thought about."""

from __future__ import annotations

from epe.planning.forecast import fastest_width
from epe.planning.view import TrajectoryView, View
from epe.planning.work import remaining_s


def by_arrival(view: View) -> list[TrajectoryView]:
    """Larger priority first, then first come, first served."""
    return sorted(view.trajectories, key=lambda t: (-t.priority, t.arrival_s, t.request_id))


def by_urgency(
    view: View, widths: tuple[int, ...], *, starvation_s: float, guard_s: float
) -> list[TrajectoryView]:
    """Starved requests first, then by priority; those that can still be in time before those that cannot
    (late ones must not make others late), then least slack, then first come, first served."""

    def urgency(trajectory: TrajectoryView) -> tuple[bool, int, bool, float, float, str]:
        starved = trajectory.unserved_s(view.now_s) > starvation_s
        slack = _slack_s(view, trajectory, widths, guard_s=guard_s)
        return (
            not starved,
            -trajectory.priority,
            slack < 0,
            slack,
            trajectory.arrival_s,
            trajectory.request_id,
        )

    return sorted(view.trajectories, key=urgency)


def _slack_s(view: View, trajectory: TrajectoryView, widths: tuple[int, ...], *, guard_s: float) -> float:
    """Seconds to spare before the deadline at the fastest width (infinite without a deadline).

    The guard counts only as far as it leaves the deadline reachable: a short deadline is not hopeless
    because a guard is long.
    """
    if trajectory.deadline_s is None:
        return float("inf")
    best = remaining_s(view.costs, trajectory, fastest_width(view.costs, trajectory, widths))
    spare = trajectory.deadline_s - max(view.now_s, trajectory.ready_s) - best
    return spare - min(guard_s, max(spare, 0.0))
