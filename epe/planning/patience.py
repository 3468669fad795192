"""How long a request of late could wait: a step that runs cannot be broken off, so whoever comes waits for its end."""

from __future__ import annotations

from collections import deque

from epe.messages import Stage
from epe.planning.view import TrajectoryView


class Patience:
    """Mutable, owned by one policy. Of the last requests that had a deadline and could be in time, it knows what each
    had to spare when it came."""

    REMEMBERED = 64
    # So many of them may be less patient than a step is long.
    SHARE = 0.1

    def __init__(self) -> None:
        self._spare_s: deque[float] = deque(maxlen=self.REMEMBERED)
        self._last = (float("-inf"), "")
        self.seconds = float("inf")

    def note(self, trajectory: TrajectoryView, *, best_s: float) -> None:
        """Take in a request that has come, unless it is known; `best_s` is the shortest latency that it could have."""
        arrival = (trajectory.arrival_s, trajectory.request_id)
        if arrival <= self._last or trajectory.deadline_s is None or trajectory.stage is not Stage.ENCODE:
            return
        self._last = arrival
        spare_s = trajectory.deadline_s - trajectory.arrival_s - best_s
        if spare_s > 0:
            self._spare_s.append(spare_s)
            self.seconds = sorted(self._spare_s)[int(self.SHARE * len(self._spare_s))]
