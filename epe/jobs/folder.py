"""The folder of a job store: one process holds it at a time, and what stands in it can be read. Everything blocks."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from epe.errors import BadSetting

SETTING = "service.jobs.path"
# "epej" in ASCII: a file of SQLite says with it whose it is.
APPLICATION_ID = 0x6570656A
SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE jobs (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    client_id TEXT NOT NULL,
    key TEXT,
    ended_at_s REAL,
    num_bytes INTEGER NOT NULL,
    record BLOB NOT NULL
);
CREATE UNIQUE INDEX jobs_by_key ON jobs (client_id, key) WHERE key IS NOT NULL;
CREATE INDEX jobs_by_end ON jobs (ended_at_s, place);
"""


class JobFolder:
    """A folder that this process holds until `release`, or until it ends."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @property
    def database(self) -> Path:
        return self.path / "jobs.sqlite"

    @property
    def results(self) -> Path:
        return self.path / "results"

    @property
    def states(self) -> Path:
        return self.path / "states"

    @classmethod
    def claim(cls, path: str | Path) -> JobFolder:
        """Make the folder if there is none, hold it, and see that it can be used. Raises `BadSetting`."""
        target = Path(path).expanduser().absolute()
        folder = cls(target, _hold(target))
        try:
            folder._prepare()
        except BaseException:
            folder.release()
            raise
        return folder

    def release(self) -> None:
        """Let another process have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _prepare(self) -> None:
        try:
            for folder in (self.results, self.states):
                folder.mkdir(mode=0o700, exist_ok=True)
            with closing(sqlite3.connect(self.database, isolation_level=None)) as database:
                _check(database, self.database)
        except OSError as error:
            raise _unusable(self.path, error.strerror or str(error)) from error
        except sqlite3.Error as error:
            raise BadSetting(
                f"{self.database} cannot be used ({error}); if it is damaged, move it away or name another folder, "
                "and jobs begin anew",
                path=SETTING,
            ) from error


def _hold(folder: Path) -> int:
    """The lock of a folder, which the kernel lets go when this process ends."""
    try:
        # Prompts and pictures are nobody else's business.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(folder, error.strerror or str(error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise BadSetting(
            f"another service keeps its jobs in {folder}; give each service a folder of its own", path=SETTING
        ) from error
    return lock


def _check(database: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new store, or see that those of an old one are whole and ours."""
    database.execute("PRAGMA journal_mode = WAL")
    (found,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (num_tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if num_tables == 0 and version == 0:
        database.executescript(
            f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT"
        )
        return
    if found != APPLICATION_ID:
        raise BadSetting(f"{path} is no job store of EPE; name another folder", path=SETTING)
    if version != SCHEMA_VERSION:
        raise BadSetting(
            f"{path} has schema {version}, and this EPE reads schema {SCHEMA_VERSION} alone; start the EPE that wrote "
            "it, or name another folder",
            path=SETTING,
        )
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)


def _unusable(folder: Path, reason: str) -> BadSetting:
    return BadSetting(
        f"jobs cannot be kept in {folder}: {reason}; name a folder that can be written to", path=SETTING
    )
