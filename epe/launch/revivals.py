"""When a child that was lost is started again."""

from __future__ import annotations

from collections import Counter


class Revivals:
    """Not at once again and again: the pause before a child is started grows, until one has lived well for a while."""

    FIRST_S, LONGEST_S, LIVED_WELL_S = 1.0, 60.0, 60.0

    def __init__(self) -> None:
        self._pauses_s: dict[str, float] = {}
        self._num_in_a_row: Counter[str] = Counter()

    def pause_s(self, name: str, *, lived_s: float) -> float:
        """Seconds before this child, which is lost after `lived_s`, is started again: none the first time."""
        before_s = self._pauses_s.get(name)
        if before_s is None or lived_s >= self.LIVED_WELL_S:
            pause_s, self._num_in_a_row[name] = 0.0, 0
        else:
            pause_s = min(self.LONGEST_S, max(self.FIRST_S, 2 * before_s))
        self._pauses_s[name] = pause_s
        self._num_in_a_row[name] += 1
        return pause_s

    def num_in_a_row(self, name: str) -> int:
        """How often this child was lost since one of its lives was good."""
        return self._num_in_a_row[name]
