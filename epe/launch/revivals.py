"""When a lost rank is started again."""

from __future__ import annotations

import time


class Revivals:
    """Not at once again and again: the pause before a rank is started grows, until it has lived well for a while."""

    FIRST_S, LONGEST_S, LIVED_WELL_S = 1.0, 60.0, 60.0

    def __init__(self) -> None:
        self._pauses_s: dict[str, float] = {}
        self._started_s: dict[str, float] = {}

    def pause_s(self, name: str) -> float:
        """Seconds before this rank, which is lost now, is started again: none the first time."""
        now_s = time.monotonic()
        pause_s = 0.0
        if name in self._started_s and now_s - self._started_s[name] < self.LIVED_WELL_S:
            pause_s = min(self.LONGEST_S, max(self.FIRST_S, 2 * self._pauses_s[name]))
        self._pauses_s[name] = pause_s
        self._started_s[name] = now_s + pause_s
        return pause_s
