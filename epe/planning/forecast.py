"""When things will end, if the queue is played forward on the cost table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


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
