"""What happens to jobs between a client, an engine and a store: each has one end, which is kept before it is told."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from epe.errors import (
    BadRequest,
    Cancelled,
    Expired,
    Gone,
    NonFinite,
    NotStored,
    Refused,
    TaskFailed,
    UnknownJob,
)
from epe.jobs import jobs as jobs_module
from epe.jobs.job import Job, JobState
from epe.jobs.jobs import MAX_INTERRUPTIONS, Jobs
from epe.jobs.retention import Limits
from epe.jobs.sqlite import SqliteStore
from epe.jobs.store import MemoryStore
from epe.transport.wire import error_from_wire
from tests.jobs.kept import Clock, Engine, open_jobs, order, picture_of, until


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class Faulty(MemoryStore):
    """A store whose disk is full while `full` is true."""

    full = False

    async def add(self, job: Job) -> None:
        self._write()
        await super().add(job)

    async def end(self, job: Job, files: object) -> None:
        self._write()
        await super().end(job, files)

    def _write(self) -> None:
        if self.full:
            raise NotStored("the disk is full")


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_job_is_in_the_store_when_it_is_accepted_and_its_files_when_it_has_ended(
    store: MemoryStore, engine: Engine
) -> None:
    jobs = await open_jobs(store, engine)
    job = await jobs.submit(order("a", num=2))
    assert [each.id for each in await store.unfinished()] == ["a"]
    assert [accepted.request_id for accepted in job.accepted] == ["a-0", "a-1"]
    engine.draw_all()
    ended = await jobs.ended("a")
    assert ended == await store.get("a")
    assert [await store.read(file.name) for file in ended.files] == [picture_of(r) for r in job.requests]
    assert (await jobs.get("a")).state is JobState.FINISHED
    await jobs.close(in_order=True)


async def test_a_job_that_cannot_be_stored_is_not_accepted_and_nothing_of_it_is_drawn(engine: Engine) -> None:
    store = Faulty()
    jobs = await open_jobs(store, engine)
    store.full = True
    with pytest.raises(NotStored):
        await jobs.submit(order("a", num=2))
    assert engine.cancelled == ["a-0", "a-1"]
    with pytest.raises(UnknownJob):
        await jobs.get("a")
    await jobs.close(in_order=True)


async def test_a_result_that_cannot_be_stored_is_told_all_the_same_and_stored_later(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "SWEEP_S", 0.01)
    store = Faulty()
    jobs = await open_jobs(store, engine)
    await jobs.submit(order("a"))
    store.full = True
    engine.draw_all()
    job = await jobs.ended("a")
    assert await jobs.read(job, job.files[0]) == picture_of(job.requests[0])
    assert (await store.unfinished())[0].id == "a", "a new life would draw it again"
    store.full = False

    async def has_stored() -> bool:
        return store.num_ended == 1

    await until(has_stored)
    assert await jobs.read(job, job.files[0]) == picture_of(job.requests[0])
    await jobs.close(in_order=True)


async def test_a_refused_request_is_no_job(store: MemoryStore, engine: Engine) -> None:
    jobs = await open_jobs(store, engine)
    engine.refusal = Refused("full", retry_after_s=3.0)
    with pytest.raises(Refused):
        await jobs.submit(order("a", key="k"))
    assert await store.unfinished() == []
    engine.refusal = None
    assert (await jobs.submit(order("b", key="k"))).id == "b", "the key is free again"
    await jobs.close(in_order=True)


@pytest.mark.parametrize(
    "error", [NonFinite("NaN", stage="denoise", step=3), Expired("late"), Gone("given up")]
)
async def test_a_job_that_fails_withdraws_the_rest_and_keeps_its_reason(
    store: MemoryStore, engine: Engine, error: TaskFailed
) -> None:
    jobs = await open_jobs(store, engine)
    await jobs.submit(order("a", num=3))
    engine.drawings[1].ending.set_exception(error)
    job = await jobs.ended("a")
    assert job.state is (JobState.EXPIRED if isinstance(error, Expired) else JobState.FAILED)
    kept = error_from_wire((await store.get("a")).error)
    assert (type(kept), str(kept), vars(kept)) == (type(error), str(error), vars(error))
    assert engine.cancelled == ["a-0", "a-1", "a-2"]
    await jobs.close(in_order=True)


async def test_a_cancelled_job_has_ended_at_once_and_is_not_finished_later(
    store: MemoryStore, engine: Engine
) -> None:
    jobs = await open_jobs(store, engine)
    await jobs.submit(order("a"))
    waiting = asyncio.ensure_future(jobs.ended("a"))
    assert (await jobs.cancel("a")).state is JobState.CANCELLED
    assert engine.cancelled == ["a-0"]
    assert isinstance(error_from_wire((await waiting).error), Cancelled)
    engine.draw_all()
    await settle()
    assert (await store.get("a")).state is JobState.CANCELLED
    await jobs.close(in_order=True)


async def test_to_cancel_a_job_that_has_ended_forgets_it(store: MemoryStore, engine: Engine) -> None:
    jobs = await open_jobs(store, engine)
    await jobs.submit(order("a", key="k"))
    engine.draw_all()
    await jobs.ended("a")
    assert (await jobs.cancel("a")).state is JobState.FINISHED
    with pytest.raises(UnknownJob):
        await jobs.get("a")
    assert (await jobs.submit(order("b", key="k"))).id == "b"
    await jobs.close(in_order=True)


# --- keys ---


async def test_the_same_key_gives_the_first_job_while_it_runs_and_after(
    store: MemoryStore, engine: Engine
) -> None:
    jobs = await open_jobs(store, engine)
    many = [jobs.submit(order(f"a{number}", key="k", digest="d")) for number in range(10)]
    ids = {job.id for job in await asyncio.gather(*many)}
    assert len(ids) == 1
    assert len(engine.drawings) == 1
    engine.draw_all()
    ended = await jobs.ended(ids.pop())
    assert await jobs.submit(order("later", key="k", digest="d")) == ended
    assert len(engine.drawings) == 1
    await jobs.close(in_order=True)


async def test_the_same_key_with_something_else_is_refused(store: MemoryStore, engine: Engine) -> None:
    jobs = await open_jobs(store, engine)
    await jobs.submit(order("a", key="k", digest="d"))
    with pytest.raises(BadRequest, match="use a new key for a new request") as caught:
        await jobs.submit(order("b", key="k", digest="other"))
    assert caught.value.param == "Idempotency-Key"
    assert len(engine.drawings) == 1
    await jobs.close(in_order=True)


async def test_a_client_that_left_before_it_heard_leaves_a_job_with_a_key_and_no_other(
    store: MemoryStore, engine: Engine
) -> None:
    jobs = await open_jobs(store, engine)
    for name, key in (("kept", "k"), ("nobodys", None)):
        submit = asyncio.ensure_future(jobs.submit(order(name, key=key)))
        await asyncio.sleep(0)
        submit.cancel()
        await settle()
    assert (await jobs.get("kept")).state is JobState.OPEN
    assert (await jobs.get("nobodys")).state is JobState.CANCELLED
    assert engine.cancelled == ["nobodys-0"]
    await jobs.close(in_order=True)


# --- lives ---


@pytest.fixture(params=["in order", "killed"])
def in_order(request: pytest.FixtureRequest) -> bool:
    return request.param == "in order"


async def end_life(jobs: Jobs, *, in_order: bool) -> None:
    """Close, or vanish with whatever was in memory."""
    if in_order:
        await jobs.close(in_order=True)
        return
    for task in list(jobs._tasks):
        task.cancel()
    await settle()
    await jobs.store.close()


async def test_jobs_go_on_in_their_old_order_in_the_next_life_and_keys_still_hold(
    tmp_path: Path, in_order: bool
) -> None:
    clock, engine = Clock(), Engine()
    jobs = await open_jobs(await SqliteStore.open(tmp_path), engine, clock=clock)
    for name in ("c", "a", "b"):
        await jobs.submit(order(name, key=name, deadline_s=50.0))
        clock.now_s += 10
    engine.drawings[0].finish()
    finished = await jobs.ended("c")
    await end_life(jobs, in_order=in_order)

    engine = Engine()
    jobs = await open_jobs(await SqliteStore.open(tmp_path), engine, clock=clock)
    assert await jobs.submit(order("again", key="c")) == finished
    assert [drawing.request.id for drawing in engine.drawings] == ["a-0", "b-0"]
    assert [drawing.again.age_s for drawing in engine.drawings] == [20.0, 10.0]
    assert (await jobs.submit(order("again", key="a"))).id == "a"
    engine.draw_all()
    job = await jobs.ended("a")
    assert await jobs.read(job, job.files[0]) == picture_of(job.requests[0])
    assert len(engine.drawings) == 2
    await jobs.close(in_order=True)


async def test_ids_answer_and_jobs_can_be_cancelled_before_requests_are_taken(tmp_path: Path) -> None:
    first = await open_jobs(await SqliteStore.open(tmp_path), Engine())
    await first.submit(order("a"))
    await first.submit(order("b"))
    await first.close(in_order=True)
    engine = Engine()
    jobs = Jobs(await SqliteStore.open(tmp_path), engine=engine, made_for="zimage")
    await jobs.open()
    assert (await jobs.get("a")).state is JobState.OPEN
    waiting = asyncio.ensure_future(jobs.ended("b"))
    assert (await jobs.cancel("a")).state is JobState.CANCELLED
    jobs.resume()
    await jobs._going_on
    engine.draw_all()
    assert (await waiting).state is JobState.FINISHED
    assert [drawing.request.id for drawing in engine.drawings] == ["b-0"]
    await jobs.close(in_order=True)


async def test_a_service_that_ends_lets_go_of_its_jobs_without_ending_them(tmp_path: Path) -> None:
    engine = Engine()
    jobs = await open_jobs(await SqliteStore.open(tmp_path), engine)
    await jobs.submit(order("a"))
    waiting = asyncio.ensure_future(jobs.ended("a"))
    jobs.suspend()
    engine.drawings[0].ending.set_exception(Gone("the service was asked to end"))
    with pytest.raises(Gone):
        await waiting
    await jobs.close(in_order=True)
    engine = Engine(at_once=True)
    jobs = await open_jobs(await SqliteStore.open(tmp_path), engine)
    assert (await jobs.ended("a")).state is JobState.FINISHED
    await jobs.close(in_order=True)


async def has_begun(store: SqliteStore, name: str) -> bool:
    return (await store.get(name)).begun


async def test_a_job_that_takes_the_service_down_again_and_again_is_given_up_and_its_neighbour_is_not(
    tmp_path: Path,
) -> None:
    engine = Engine()
    jobs = await open_jobs(await SqliteStore.open(tmp_path), engine)
    for name in ("deadly", "waiting"):
        await jobs.submit(order(name))
    for _ in range(MAX_INTERRUPTIONS):
        engine.drawings[0].step(1)
        await until(partial(has_begun, jobs.store, "deadly"))
        await end_life(jobs, in_order=False)
        engine = Engine()
        jobs = await open_jobs(await SqliteStore.open(tmp_path), engine)
        await jobs._going_on
    job = await jobs.ended("deadly")
    assert job.state is JobState.FAILED
    assert "the service was lost 3 times while it drew it" in job.error.text
    assert [drawing.request.id for drawing in engine.drawings] == ["waiting-0"]
    await jobs.close(in_order=True)


async def test_a_job_that_was_drawn_at_many_orderly_ends_is_not_given_up(tmp_path: Path) -> None:
    engine = Engine()
    jobs = await open_jobs(await SqliteStore.open(tmp_path), engine)
    await jobs.submit(order("a"))
    for _ in range(MAX_INTERRUPTIONS + 1):
        engine.drawings[0].step(1)
        await until(partial(has_begun, jobs.store, "a"))
        await end_life(jobs, in_order=True)
        engine = Engine()
        jobs = await open_jobs(await SqliteStore.open(tmp_path), engine)
        await jobs._going_on
    engine.draw_all()
    assert (await jobs.ended("a")).state is JobState.FINISHED
    await jobs.close(in_order=True)


async def test_a_job_for_another_model_fails_with_a_sentence(store: MemoryStore, engine: Engine) -> None:
    jobs = await open_jobs(store, engine, made_for="zimage /models/a")
    await jobs.submit(order("a"))
    for task in list(jobs._tasks):
        task.cancel()
    later = await open_jobs(store, engine, made_for="flux1 /models/b")
    job = await later.ended("a")
    assert (
        job.error.text
        == "the job was accepted for zimage /models/a, and the service now serves flux1 /models/b"
    )
    await later.close(in_order=True)


async def test_progress_counts_the_steps_of_all_requests_and_only_grows(
    store: MemoryStore, engine: Engine
) -> None:
    jobs = await open_jobs(store, engine)
    job = await jobs.submit(order("a", num=2))
    seen = [jobs.num_steps_done(job)]
    for drawing, step in ((0, 2), (1, 1), (0, 1), (0, 4)):
        engine.drawings[drawing].step(step)
        seen.append(jobs.num_steps_done(job))
    assert seen == [0, 2, 3, 3, 5]
    assert (await jobs.get("a")).begun
    engine.draw_all()
    assert jobs.num_steps_done(await jobs.ended("a")) == 8
    await jobs.close(in_order=True)


# --- how long they are kept ---


async def test_two_hundred_finished_jobs_are_retrievable_until_their_time_is_over(engine: Engine) -> None:
    clock, store = Clock(), MemoryStore()
    engine.at_once = True
    jobs = await open_jobs(store, engine, clock=clock, limits=Limits(max_age_s=3600.0))
    for number in range(200):
        await jobs.submit(order(f"a{number}"))
        await jobs.ended(f"a{number}")
    clock.now_s += 3600.0
    for number in range(200):
        job = await jobs.get(f"a{number}")
        assert await jobs.read(job, job.files[0]) == picture_of(job.requests[0])
    clock.now_s += 1.0
    await jobs.submit(order("new"))
    await jobs.ended("new")
    await settle()
    assert [store.num_ended, (await jobs.get("new")).state] == [1, JobState.FINISHED]
    with pytest.raises(UnknownJob, match="is kept for 3600 s"):
        await jobs.get("a0")
    await jobs.close(in_order=True)


async def test_when_there_is_no_room_the_oldest_go_and_the_last_one_stays(engine: Engine) -> None:
    clock, store = Clock(), MemoryStore()
    engine.at_once = True
    jobs = await open_jobs(store, engine, clock=clock, limits=Limits(max_bytes=1))
    for name in ("a", "b", "c"):
        await jobs.submit(order(name))
        job = await jobs.ended(name)
        await settle()
        assert await jobs.read(job, job.files[0]) == picture_of(job.requests[0])
        assert store.num_ended == 1
    await jobs.close(in_order=True)


async def test_ends_in_a_far_future_are_of_a_clock_that_was_wrong_and_keep_nothing_for_ever(
    store: MemoryStore, engine: Engine
) -> None:
    clock = Clock()
    engine.at_once = True
    jobs = await open_jobs(store, engine, clock=clock, limits=Limits(max_age_s=86400.0))

    async def num_kept_after(name: str, *, set_back_s: float) -> int:
        clock.now_s -= set_back_s
        await jobs.submit(order(name))
        await jobs.ended(name)
        await settle()
        return store.num_ended

    assert await num_kept_after("a", set_back_s=0.0) == 1
    assert await num_kept_after("b", set_back_s=3600.0) == 2
    assert await num_kept_after("c", set_back_s=14 * 365 * 86400.0) == 1
    assert (await jobs.get("c")).state is JobState.FINISHED
    await jobs.close(in_order=True)
