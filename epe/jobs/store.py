"""What jobs ask of the store that keeps them, and the one that keeps them in memory alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from epe.errors import NotStored
from epe.jobs.job import Job


class JobStore(Protocol):
    """Jobs in the order in which they were accepted, and the files of the finished ones. What has returned is kept.

    Everything raises `NotStored` when it cannot be done. `num_bytes` is what the ended jobs take: their records and
    their files.
    """

    num_bytes: int
    num_ended: int

    async def add(self, job: Job) -> None:
        """Keep a new job."""

    async def change(self, job: Job) -> None:
        """Keep this instead of what was kept of a job that has not ended."""

    async def end(self, job: Job, files: Mapping[str, bytes]) -> None:
        """Keep a job that has ended, after its files."""

    async def get(self, job_id: str) -> Job | None: ...

    async def find(self, client_id: str, key: str) -> Job | None:
        """The job that a client handed in with this key."""

    async def unfinished(self) -> list[Job]: ...

    async def page(
        self, client_id: str | None, *, after: str | None, limit: int, newest_first: bool
    ) -> list[Job]:
        """Up to `limit` jobs, of one client or of all (None), in the order in which they were accepted or against it:
        those behind the job `after`."""

    async def oldest_ended(self) -> Job | None:
        """The one of those that have ended which ended first."""

    async def read(self, name: str) -> bytes:
        """A file of a finished job."""

    async def remove(self, job: Job) -> None:
        """Forget a job that has ended, and its files."""

    async def close(self) -> None: ...


def num_bytes_of(job: Job, record: bytes) -> int:
    """What an ended job takes."""
    return len(record) + sum(file.num_bytes for file in job.files)


class MemoryStore:
    """Jobs and files that end with the process."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.num_ended = 0
        self._jobs: dict[str, Job] = {}
        self._ended: dict[str, int] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._files: dict[str, bytes] = {}

    async def add(self, job: Job) -> None:
        self._jobs[job.id] = job
        if job.key is not None:
            self._keys[job.client_id, job.key] = job.id

    async def change(self, job: Job) -> None:
        if job.id not in self._ended:
            self._jobs[job.id] = job

    async def end(self, job: Job, files: Mapping[str, bytes]) -> None:
        self._jobs[job.id] = job
        self._files.update(files)
        self._ended[job.id] = num_bytes_of(job, msgspec.json.encode(job))
        self.num_bytes += self._ended[job.id]
        self.num_ended += 1

    async def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    async def find(self, client_id: str, key: str) -> Job | None:
        return self._jobs.get(self._keys.get((client_id, key), ""))

    async def unfinished(self) -> list[Job]:
        return [job for job in self._jobs.values() if not job.has_ended]

    async def page(
        self, client_id: str | None, *, after: str | None, limit: int, newest_first: bool
    ) -> list[Job]:
        jobs = [job for job in self._jobs.values() if client_id in (None, job.client_id)]
        ordered = jobs[::-1] if newest_first else jobs
        places = [place for place, job in enumerate(ordered) if job.id == after]
        return ordered[places[0] + 1 if places else 0 :][:limit]

    async def oldest_ended(self) -> Job | None:
        return self._jobs[next(iter(self._ended))] if self._ended else None

    async def read(self, name: str) -> bytes:
        if name not in self._files:
            raise NotStored(f"the result {name} is no longer kept")
        return self._files[name]

    async def remove(self, job: Job) -> None:
        if job.id not in self._ended:
            return
        self.num_bytes -= self._ended.pop(job.id)
        self.num_ended -= 1
        del self._jobs[job.id]
        self._keys.pop((job.client_id, job.key or ""), None)
        for file in job.files:
            self._files.pop(file.name, None)

    async def close(self) -> None:
        self._jobs.clear()
        self._files.clear()
