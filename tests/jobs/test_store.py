"""The two stores keep their word alike; the one on disk also after its process has ended."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from epe.errors import BadSetting, NotStored
from epe.jobs.folder import SCHEMA_VERSION, JobFolder
from epe.jobs.job import Job, ended_by
from epe.jobs.sqlite import SqliteStore
from epe.jobs.store import JobStore, MemoryStore
from tests.jobs.kept import finished_job, open_job


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobStore]:
    store = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "jobs")
    yield store
    await store.close()


async def test_a_job_is_found_by_its_id_and_by_its_key(store: JobStore) -> None:
    job = open_job("a", key="k")
    await store.add(job)
    assert await store.get("a") == job
    assert await store.find("", "k") == job
    assert await store.find("somebody else", "k") is None
    assert await store.get("b") is None


async def test_unfinished_jobs_come_in_the_order_in_which_they_were_accepted(store: JobStore) -> None:
    for name in ("c", "a", "b"):
        await store.add(open_job(name))
    await store.end(finished_job("a"), {"a-0": b"abc"})
    assert [job.id for job in await store.unfinished()] == ["c", "b"]


async def test_jobs_are_listed_page_by_page_in_either_order_and_by_client(store: JobStore) -> None:
    owners = {"c": "x", "a": "y", "b": "x", "d": "x"}
    for name, owner in owners.items():
        await store.add(msgspec.structs.replace(open_job(name), client_id=owner))
    await store.end(msgspec.structs.replace(finished_job("b"), client_id="x"), {"b-0": b"abc"})

    async def page(
        owner: str | None = None, *, after: str | None = None, limit: int = 9, newest_first: bool = False
    ):
        jobs = await store.page(owner, after=after, limit=limit, newest_first=newest_first)
        return "".join(job.id for job in jobs)

    assert await page() == "cabd"
    assert await page(newest_first=True) == "dbac"
    assert await page("x") == "cbd"
    assert await page("x", newest_first=True, limit=2) == "db"
    assert await page("x", newest_first=True, after="b") == "c"
    assert await page(after="a", limit=1) == "b"
    assert await page("nobody") == ""
    assert await page(after="unknown") == "cabd"


async def test_an_ended_job_has_its_file_until_it_is_removed(store: JobStore) -> None:
    await store.add(open_job("a", key="k"))
    await store.end(finished_job("a", key="k"), {"a-0": b"abc"})
    assert (await store.get("a")).has_ended
    assert await store.read("a-0") == b"abc"
    assert (store.num_ended, store.num_bytes > 3) == (1, True)
    await store.remove(finished_job("a", key="k"))
    assert await store.get("a") is None
    assert await store.find("", "k") is None
    assert (store.num_ended, store.num_bytes) == (0, 0)
    with pytest.raises(NotStored):
        await store.read("a-0")


async def test_an_end_is_final(store: JobStore) -> None:
    await store.add(open_job("a"))
    await store.end(finished_job("a"), {"a-0": b"abc"})
    await store.change(open_job("a"))
    assert (await store.get("a")).has_ended


async def test_the_oldest_is_the_one_that_ended_first(store: JobStore) -> None:
    for name in ("a", "b"):
        await store.add(open_job(name))
    await store.end(finished_job("b", now_s=1.0), {"b-0": b"abc"})
    await store.end(finished_job("a", now_s=2.0), {"a-0": b"abc"})
    assert (await store.oldest_ended()).id == "b"


async def test_the_order_of_ends_is_that_in_which_they_came_also_when_the_clock_is_set_back(
    store: JobStore,
) -> None:
    ends = {"d": 5000.0, "b": 1000.0, "c": 1001.0, "a": 1000.5}
    for name in "abcd":
        await store.add(open_job(name))
    for name, now_s in ends.items():
        await store.end(finished_job(name, now_s=now_s), {f"{name}-0": b"abc"})
    order = []
    while (oldest := await store.oldest_ended()) is not None:
        order.append((oldest.id, oldest.ended_at_s))
        await store.remove(oldest)
    assert order == list(ends.items())


async def test_an_error_comes_back_as_it_was(store: JobStore) -> None:
    failed = ended_by(open_job("a"), NotStored("no"), now_s=3.0)
    await store.add(open_job("a"))
    await store.end(failed, {})
    assert await store.get("a") == failed


async def test_a_new_process_finds_what_was_there_and_nothing_half(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    await store.add(open_job("a"))
    await store.add(open_job("b"))
    await store.end(finished_job("a"), {"a-0": b"abc"})
    before = store.num_bytes
    await store.close()
    # What a process leaves that was killed while it wrote.
    (tmp_path / "results" / "b-0.new").write_bytes(b"ha")
    (tmp_path / "results" / "b-0").write_bytes(b"whole, but its row was not")
    store = await SqliteStore.open(tmp_path)
    assert await store.read("a-0") == b"abc"
    assert [job.id for job in await store.unfinished()] == ["b"]
    assert (store.num_ended, store.num_bytes) == (1, before)
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["a-0"]
    await store.close()


async def test_two_services_do_not_share_a_store(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    with pytest.raises(BadSetting, match="another service keeps its jobs in"):
        await SqliteStore.open(tmp_path)
    await store.close()
    await (await SqliteStore.open(tmp_path)).close()


def test_a_process_that_is_killed_lets_its_store_go_with_all_that_it_had_said(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    writer = context.Process(target=_write_for_ever, args=(tmp_path, theirs), daemon=True)
    writer.start()
    theirs.close()
    said = [ours.recv() for _ in range(20)]
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    while ours.poll():  # what it had said before it died, too
        try:
            said.append(ours.recv())
        except EOFError:
            break

    async def names() -> list[str]:
        store = await SqliteStore.open(tmp_path)
        found = [job.id for job in await store.unfinished()]
        await store.close()
        return found

    assert asyncio.run(names())[: len(said)] == said


def _write_for_ever(folder: Path, pipe: object) -> None:
    async def write() -> None:
        store = await SqliteStore.open(folder)
        number = 0
        while True:
            await store.add(open_job(str(number)))
            pipe.send(str(number))
            number += 1

    asyncio.run(write())


def spoil(folder: Path, statement: str) -> None:
    database = sqlite3.connect(folder / "jobs.sqlite")
    database.execute(statement)
    database.commit()
    database.close()


async def test_a_store_of_another_schema_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    await (await SqliteStore.open(tmp_path)).close()
    spoil(tmp_path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(BadSetting, match=f"has schema {SCHEMA_VERSION + 1}, and this EPE reads"):
        await SqliteStore.open(tmp_path)
    spoil(tmp_path, f"PRAGMA user_version = {SCHEMA_VERSION}")
    await (await SqliteStore.open(tmp_path)).close()


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    spoil(tmp_path, "CREATE TABLE others (x)")
    with pytest.raises(BadSetting, match="is no job store of EPE"):
        await SqliteStore.open(tmp_path)


@pytest.mark.parametrize("content", [b"this is no database at all" * 100, b""])
async def test_a_file_that_is_no_database_is_one_sentence_and_an_empty_one_is_new(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "jobs.sqlite").write_bytes(content)
    if not content:
        await (await SqliteStore.open(tmp_path)).close()
        return
    with pytest.raises(BadSetting, match="move it away or name another folder") as caught:
        await SqliteStore.open(tmp_path)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "jobs.sqlite").read_bytes() == content


async def test_pages_that_were_overwritten_are_found_at_the_start(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    for number in range(200):
        await store.add(open_job(str(number)))
    await store.close()
    path = tmp_path / "jobs.sqlite"
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(BadSetting, match="cannot be used"):
        await SqliteStore.open(tmp_path)


async def test_a_record_that_cannot_be_read_is_said_and_not_skipped(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    await store.add(open_job("a"))
    await store.close()
    spoil(tmp_path, "UPDATE jobs SET record = '{}'")
    with pytest.raises(BadSetting, match="holds a job that cannot be read"):
        await SqliteStore.open(tmp_path)


@pytest.mark.parametrize("place", ["file/jobs", "/proc/epe-jobs"])
def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="name a folder that can be written to") as caught:
        JobFolder.claim(tmp_path / place)
    assert "\n" not in str(caught.value)


async def test_a_full_disk_is_an_error_that_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    await store.add(open_job("a"))
    await full(store)
    with pytest.raises(NotStored, match="full"):
        await store.add(huge_job("b"))
    with pytest.raises(NotStored, match="full"):
        await store.end(huge_job("a"), {"a-0": b"abc"})
    assert [job.id for job in await store.unfinished()] == ["a"]
    assert (store.num_ended, store.num_bytes) == (0, 0)
    await store._run("PRAGMA max_page_count = 1000000")
    await store.end(huge_job("a"), {"a-0": b"abc"})
    assert store.num_ended == 1
    await store.close()


async def full(store: SqliteStore) -> None:
    """From now on SQLite is told that there is no page left."""
    ((num_pages,),) = await store._run("PRAGMA page_count")
    await store._run(f"PRAGMA max_page_count = {num_pages}")


def huge_job(name: str) -> Job:
    """One whose record takes pages of its own."""
    return msgspec.structs.replace(finished_job(name), digest="x" * 100_000)


async def test_what_is_kept_is_nobody_elses_to_read(tmp_path: Path) -> None:
    folder = JobFolder.claim(tmp_path / "jobs")
    assert (tmp_path / "jobs").stat().st_mode & 0o077 == 0
    folder.release()


def test_a_job_is_plain_json() -> None:
    job = finished_job("a", key="k")
    assert msgspec.json.decode(msgspec.json.encode(job), type=type(job)) == job
