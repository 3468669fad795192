"""Jobs in SQLite and their files beside it; the loop never waits for the disk.

Each statement is a transaction of its own and has reached the disk when it returns (WAL, `synchronous = FULL`). A
file is written before the row that names it, and removed after it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import msgspec

from epe.errors import BadSetting, NotStored
from epe.jobs.files import remove_others, write_lasting
from epe.jobs.folder import SETTING, JobFolder
from epe.jobs.job import Job
from epe.jobs.store import num_bytes_of
from epe.telemetry.log import get_logger

log = get_logger("jobs")

Row = Sequence[Any]

# The time in the record is the clock's; this one orders the ends, also when the clock has been set back. (Microseconds
# are the least that differ, this long after 1970.)
_PLACE_OF_END = "max(?, coalesce((SELECT max(ended_at_s) FROM jobs) + 1e-6, 0))"


class SqliteStore:
    """The store in one folder. Use `open`."""

    def __init__(self, folder: JobFolder, database: aiosqlite.Connection) -> None:
        self.num_bytes = 0
        self.num_ended = 0
        self._folder = folder
        self._database = database

    @property
    def folder(self) -> JobFolder:
        return self._folder

    @classmethod
    async def open(cls, path: str | Path) -> SqliteStore:
        """Hold the folder and read what stands there. Raises `BadSetting`."""
        folder = await asyncio.to_thread(JobFolder.claim, path)
        database = await aiosqlite.connect(folder.database, isolation_level=None)
        store = cls(folder, database)
        try:
            await store._begin()
        except BaseException as error:
            await store.close()
            if isinstance(error, NotStored):
                raise BadSetting(str(error), path=SETTING) from error
            raise
        return store

    async def _begin(self) -> None:
        await self._run("PRAGMA synchronous = FULL")
        rows = await self._run("SELECT record FROM jobs")
        names = {file.name for row in rows for file in self._job(row).files}
        async with self._disk():
            num_left = await asyncio.to_thread(remove_others, self._folder.results, names)
        (ended,) = await self._run(
            "SELECT count(*), coalesce(sum(num_bytes), 0) FROM jobs WHERE ended_at_s NOT NULL"
        )
        self.num_ended, self.num_bytes = ended
        log.info(
            "jobs.opened", path=str(self._folder.path), jobs=len(rows), ended=self.num_ended, removed=num_left
        )

    async def add(self, job: Job) -> None:
        record = msgspec.json.encode(job)
        await self._run(
            "INSERT INTO jobs (id, client_id, key, num_bytes, record) VALUES (?, ?, ?, 0, ?)",
            (job.id, job.client_id, job.key, record),
        )

    async def change(self, job: Job) -> None:
        where = "UPDATE jobs SET record = ? WHERE id = ? AND ended_at_s IS NULL"
        await self._run(where, (msgspec.json.encode(job), job.id))

    async def end(self, job: Job, files: Mapping[str, bytes]) -> None:
        async with self._disk():
            for name, data in files.items():
                await asyncio.to_thread(write_lasting, self._folder.results / name, data)
        record = msgspec.json.encode(job)
        num_bytes = num_bytes_of(job, record)
        await self._run(
            f"UPDATE jobs SET record = ?, ended_at_s = {_PLACE_OF_END}, num_bytes = ? WHERE id = ?",
            (record, job.ended_at_s, num_bytes, job.id),
        )
        self.num_bytes += num_bytes
        self.num_ended += 1

    async def get(self, job_id: str) -> Job | None:
        return self._first(await self._run("SELECT record FROM jobs WHERE id = ?", (job_id,)))

    async def find(self, client_id: str, key: str) -> Job | None:
        where = "SELECT record FROM jobs WHERE client_id = ? AND key = ?"
        return self._first(await self._run(where, (client_id, key)))

    async def unfinished(self) -> list[Job]:
        rows = await self._run("SELECT record FROM jobs WHERE ended_at_s IS NULL ORDER BY place")
        return [self._job(row) for row in rows]

    async def page(
        self, client_id: str | None, *, after: str | None, limit: int, newest_first: bool
    ) -> list[Job]:
        behind, order = ("<", "DESC") if newest_first else (">", "ASC")
        rows = await self._run(
            "SELECT record FROM jobs WHERE (?1 IS NULL OR client_id = ?1) AND (?2 IS NULL OR place "
            f"{behind} coalesce((SELECT place FROM jobs WHERE id = ?2), ?3)) ORDER BY place {order} LIMIT ?4",
            (client_id, after, 2**62 if newest_first else -1, limit),
        )
        return [self._job(row) for row in rows]

    async def oldest_ended(self) -> Job | None:
        where = "SELECT record FROM jobs WHERE ended_at_s NOT NULL ORDER BY ended_at_s, place LIMIT 1"
        return self._first(await self._run(where))

    async def read(self, name: str) -> bytes:
        async with self._disk():
            return await asyncio.to_thread((self._folder.results / name).read_bytes)

    async def remove(self, job: Job) -> None:
        rows = await self._run("DELETE FROM jobs WHERE id = ? RETURNING num_bytes", (job.id,))
        if not rows:
            return
        self.num_bytes -= rows[0][0]
        self.num_ended -= 1
        async with self._disk():
            for file in job.files:
                await asyncio.to_thread((self._folder.results / file.name).unlink, missing_ok=True)

    async def close(self) -> None:
        await self._database.close()
        self._folder.release()

    # --- within ---

    async def _run(self, statement: str, values: Row = ()) -> list[Row]:
        async with self._disk():
            return list(await self._database.execute_fetchall(statement, values))

    @asynccontextmanager
    async def _disk(self) -> AsyncIterator[None]:
        """What the disk or SQLite cannot do is `NotStored`."""
        try:
            yield
        except (OSError, sqlite3.Error, ValueError) as error:  # a closed connection is a ValueError
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise NotStored(f"the job store in {self._folder.path} cannot be used: {reason}") from error

    def _first(self, rows: list[Row]) -> Job | None:
        return self._job(rows[0]) if rows else None

    def _job(self, row: Row) -> Job:
        try:
            return msgspec.json.decode(row[0], type=Job)
        except msgspec.DecodeError as error:
            raise NotStored(f"{self._folder.database} holds a job that cannot be read: {error}") from error
