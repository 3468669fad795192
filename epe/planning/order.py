"""In which order requests are thought about."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice

from epe.planning.view import TrajectoryView, View


def by_arrival(view: View) -> list[TrajectoryView]:
    """Larger priority first, then first come, first served."""
    return sorted(view.trajectories, key=lambda t: (-t.priority, t.arrival_s, t.request_id))


# What a request is sorted by, its id last.
Key = tuple[float | str, ...]


class Order:
    """Requests in the order of a key."""

    def __init__(self) -> None:
        self._sorted: list[Key] = []
        self._keys: dict[str, Key] = {}

    def __len__(self) -> int:
        return len(self._sorted)

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def put(self, name: str, key: Key) -> None:
        """Take in a request that is not in it."""
        self._keys[name] = key = (*key, name)
        insort(self._sorted, key)

    def drop(self, name: str) -> None:
        """Forget a request, if it is in it."""
        key = self._keys.pop(name, None)
        if key is not None:
            del self._sorted[bisect_left(self._sorted, key)]

    def first(self, limit: int) -> list[str]:
        """The names of the first `limit`."""
        return [str(key[-1]) for key in islice(self._sorted, limit)]

    def num_below(self, key: Key) -> int:
        """How many stand before a key."""
        return bisect_left(self._sorted, key)
