"""How long jobs are kept after their end: whatever ended first is forgotten first."""

from __future__ import annotations

from dataclasses import dataclass

from epe.errors import NotStored
from epe.jobs.store import JobStore
from epe.telemetry.log import get_logger

log = get_logger("jobs")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Room for the records and results of jobs that have ended, and their greatest age."""

    max_bytes: int = 2**30
    max_age_s: float = 86400.0

    def __str__(self) -> str:
        return f"for {self.max_age_s:g} s, and while there is room among {self.max_bytes / 2**20:g} MiB"


async def make_room(store: JobStore, limits: Limits, *, now_s: float) -> None:
    """Forget jobs while the oldest is too old or there are too many; for room alone, the last one is not forgotten:
    somebody is about to fetch it."""
    try:
        while (oldest := await store.oldest_ended()) is not None:
            # An end as far in the future is of a clock that was wrong, and would keep all that ended later for ever.
            is_old = abs(now_s - (oldest.ended_at_s or 0.0)) > limits.max_age_s
            if not is_old and (store.num_bytes <= limits.max_bytes or store.num_ended == 1):
                return
            await store.remove(oldest)
            log.info("job.was_forgotten", job=oldest.id, reason="age" if is_old else "room")
    except NotStored as error:
        log.error("jobs.were_not_forgotten", reason=str(error))
