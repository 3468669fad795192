"""In which order requests are thought about."""

from __future__ import annotations

from epe.planning.view import TrajectoryView, View


def by_arrival(view: View) -> list[TrajectoryView]:
    """Larger priority first, then first come, first served."""
    return sorted(view.trajectories, key=lambda t: (-t.priority, t.arrival_s, t.request_id))
