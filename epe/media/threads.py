"""Threads of this process that an encoder has made real-time ones, put back to what all others are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")
_REAL_TIME = (getattr(os, "SCHED_FIFO", None), getattr(os, "SCHED_RR", None))


@contextmanager
def no_new_real_time_threads() -> Iterator[None]:
    """Whatever the block makes real-time is made usual again at its end.

    SVT-AV1 gives its threads, and the one that opens it, the highest real-time priority wherever it may (as root
    it may): a server's threads that compute would then starve everything else on the machine.
    """
    before = _real_time_threads()
    try:
        yield
    finally:
        for thread in _real_time_threads() - before:
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _real_time_threads() -> set[int]:
    """Empty where the system has no such list (it is Linux's)."""
    if not _TASKS.is_dir():
        return set()
    return {thread for thread in map(int, os.listdir(_TASKS)) if _is_real_time(thread)}


def _is_real_time(thread: int) -> bool:
    try:
        return os.sched_getscheduler(thread) in _REAL_TIME
    except ProcessLookupError:
        return False
