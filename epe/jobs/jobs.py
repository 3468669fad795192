"""Takes jobs, follows each to its one end, and has the store know of both before anybody else does.

A job whose service ends before it does is drawn again from its requests: the same bits, whatever was lost. So an end
that cannot be stored is told all the same, and stored later; a job that cannot be stored is not accepted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace

from epe.errors import BadRequest, Cancelled, EpeError, Gone, NotStored, TaskFailed, UnknownJob
from epe.jobs.engine import Engine
from epe.jobs.job import Job, JobState, ResultFile, ended_by
from epe.jobs.open_job import OpenJob, Order
from epe.jobs.retention import Limits, make_room
from epe.jobs.states import States
from epe.jobs.store import JobStore
from epe.telemetry.log import get_logger

T = TypeVar("T")

# A job that takes the service down with it each time must not do so for ever.
MAX_INTERRUPTIONS = 3
SWEEP_S = 60.0

log = get_logger("jobs")


class Jobs:
    """One for each leader. `engine` draws for `made_for`, the model that it serves; `clock` is Unix time.

    Use `open`, then `resume` once requests are taken; `suspend` before the engine ends, then `close`.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        engine: Engine,
        made_for: str,
        limits: Limits | None = None,
        states: States | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.engine = engine
        self.made_for = made_for
        self.limits = limits or Limits()
        self.states = states or States()
        self.clock = clock
        self._open: dict[str, OpenJob] = {}
        self._arriving: dict[tuple[str, str], asyncio.Task[Job]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._following: set[asyncio.Task[None]] = set()
        self._going_on: asyncio.Task[None] | None = None
        self._is_suspended = False

    async def open(self) -> None:
        """Take up what the store has: from now on ids answer. Raises `NotStored`."""
        for job in await self.store.unfinished():
            self._open[job.id] = OpenJob(job, progressed=self._progressed)
        await self.states.open(name for each in self._open.values() for name in each.job.request_ids)
        self._own(self._sweep())

    def resume(self) -> None:
        """Hand the jobs of earlier lives in again, in their old order; whoever comes now comes after them."""
        if self._going_on is None:
            self._going_on = self._own(self._go_on())

    def suspend(self) -> None:
        """From now on a job that the engine lets go of has not ended: it waits for the next life."""
        self._is_suspended = True

    async def settle(self, *, timeout_s: float) -> None:
        """Wait until what the engine has ended is stored and told."""
        if self._following:
            await asyncio.wait(self._following, timeout=timeout_s)

    async def close(self, *, in_order: bool) -> None:
        """Stop following; what has not ended goes on in the next life. `in_order`: nothing of this end is a job's
        fault."""
        self.suspend()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in self._open.values():
            if in_order and each.job.begun:
                await self._change(each, begun=False)
            each.give_up(
                Gone("the service has ended; a job that it keeps on disk goes on when it is started again")
            )
        await self.states.close()
        await self.store.close()

    # --- what clients ask ---

    async def submit(self, order: Order) -> Job:
        """Take a job, once for each key of a client. Raises what the engine raises when it refuses a request, and
        `NotStored`. A caller that is cancelled here leaves a job with a key behind, and no other."""
        if self._going_on is not None:
            await asyncio.shield(self._going_on)
        if order.key is not None:
            return await self._submit_once(order, (order.client_id, order.key))
        taking = self._own(self._take(order))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._abandon)
            raise

    async def get(self, job_id: str) -> Job:
        """A job as it is now; raises `UnknownJob`."""
        if each := self._open.get(job_id):
            return each.job
        if (job := await self.store.get(job_id)) is None:
            raise UnknownJob(
                f"there is no job {job_id[:64]!r}; one that has ended is kept {self.limits}", param="id"
            )
        return job

    async def page(
        self, client_id: str | None, *, after: str | None, limit: int, newest_first: bool
    ) -> list[Job]:
        """Jobs as they are now, in the order in which they were accepted or against it: see `JobStore.page`."""
        found = await self.store.page(client_id, after=after, limit=limit, newest_first=newest_first)
        return [each.job if (each := self._open.get(job.id)) else job for job in found]

    async def ended(self, job_id: str) -> Job:
        """Wait for the end of a job; raises `UnknownJob`, and `Gone` when the service ends before it."""
        each = self._open.get(job_id)
        return await (each.ended() if each else self.get(job_id))

    def when_ended(self, job_id: str, call: Callable[[], None]) -> None:
        """Call once when a job has ended or is let go of, at once if it has."""
        each = self._open.get(job_id)
        if each is None:
            call()
        else:
            each.when_ended(call)

    def num_steps_done(self, job: Job) -> int:
        """Denoising steps of all of its requests that are done."""
        if each := self._open.get(job.id):
            return each.num_steps_done
        return job.num_steps if job.state is JobState.FINISHED else 0

    async def read(self, job: Job, file: ResultFile) -> bytes:
        """The bytes of a finished picture or video; raises `NotStored` if it was forgotten meanwhile."""
        each = self._open.get(job.id)
        return each.files[file.name] if each else await self.store.read(file.name)

    async def cancel(self, job_id: str) -> Job:
        """End a job that has not ended, or forget one that has; gives what it is now. Raises `UnknownJob`."""
        each = self._open.get(job_id)
        if each is None:
            job = await self.get(job_id)
            await self.store.remove(job)
            return job
        error = Cancelled("the job was cancelled")
        await self._end(each, ended_by(each.job, error, now_s=self.clock(), state=JobState.CANCELLED))
        each.withdraw()
        return await each.ended()

    # --- how a job begins ---

    async def _submit_once(self, order: Order, place: tuple[str, str]) -> Job:
        """The first of those that come with a key brings the job, all others find it."""
        if (arriving := self._arriving.get(place)) is None:
            arriving = self._arriving[place] = self._own(self._find_or_take(order, place))
            arriving.add_done_callback(lambda _: self._arriving.pop(place))
        job = await asyncio.shield(arriving)
        if job.digest != order.digest:
            raise BadRequest(
                f"idempotency key {order.key!r} came with another request before; use a new key for a new request",
                param="Idempotency-Key",
            )
        return job

    async def _find_or_take(self, order: Order, place: tuple[str, str]) -> Job:
        return await self.store.find(*place) or await self._take(order)

    async def _take(self, order: Order) -> Job:
        job = order.accepted(made_for=self.made_for, now_s=self.clock())
        each = OpenJob(job, progressed=self._progressed)
        await each.hand_in(self.engine)
        try:
            await self.store.add(each.job)
        except BaseException:
            each.withdraw()
            raise
        self._open[order.id] = each
        self.states.want(job.request_ids)
        self._begin_to_follow(each)
        return each.job

    def _abandon(self, taking: asyncio.Task[Job]) -> None:
        """Nobody has heard of this job, and nobody could ask for it."""
        if not taking.cancelled() and taking.exception() is None and not self._is_suspended:
            self._own(self.cancel(taking.result().id))

    def _progressed(self, each: OpenJob) -> None:
        if not each.job.begun and each.job.id in self._open:
            each.job = replace(each.job, begun=True)
            self._own(self._change(each))

    # --- how it goes on after the service has ended ---

    async def _go_on(self) -> None:
        for each in list(self._open.values()):
            if not each.is_at_work and not each.is_ending:
                await self._go_on_with(each)

    async def _go_on_with(self, each: OpenJob) -> None:
        if each.job.begun:
            await self._change(each, begun=False, num_interruptions=each.job.num_interruptions + 1)
        age_s = max(0.0, self.clock() - each.job.accepted_at_s)
        try:
            self._check(each.job)
            states = {name: await self.states.load(name) for name in each.job.request_ids}
            await each.hand_in(self.engine, age_s=age_s, states=states)
        except EpeError as error:
            await self._fail(each, error)
            return
        steps = [None if state is None else state.message.header.step for state in states.values()]
        log.info("job.went_on", job=each.job.id, age_s=round(age_s, 3), steps=steps)
        if each.is_ending:  # it was cancelled meanwhile
            each.withdraw()
        else:
            self._begin_to_follow(each)

    def _check(self, job: Job) -> None:
        """Whether a job of an earlier life may be drawn in this one. Raises `TaskFailed`."""
        if job.made_for != self.made_for:
            raise TaskFailed(
                f"the job was accepted for {job.made_for}, and the service now serves {self.made_for}"
            )
        if job.num_interruptions >= MAX_INTERRUPTIONS:
            raise TaskFailed(
                f"the job was given up: the service was lost {MAX_INTERRUPTIONS} times while it drew it"
            )

    # --- how it ends ---

    def _begin_to_follow(self, each: OpenJob) -> None:
        task = self._own(self._follow(each))
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _follow(self, each: OpenJob) -> None:
        try:
            job, files = await each.drawn(self.clock)
        except EpeError as error:
            await self._fail(each, error)
        else:
            await self._end(each, job, files)

    async def _fail(self, each: OpenJob, error: EpeError) -> None:
        if self._is_suspended and isinstance(error, Gone):
            each.give_up(error)
        else:
            await self._end(each, ended_by(each.job, error, now_s=self.clock()))

    async def _end(self, each: OpenJob, job: Job, files: dict[str, bytes] | None = None) -> None:
        """The first end counts. It is stored before it is told."""
        if each.is_ending:
            return
        each.is_ending = True
        self.states.forget(job.request_ids)
        stored = await self._store_end(job, files or {})
        each.job, each.files = job, files or {}
        if stored:
            del self._open[job.id]
        log.info("job.ended", job=job.id, state=job.state)
        each.end()
        await make_room(self.store, self.limits, now_s=self.clock())

    async def _store_end(self, job: Job, files: dict[str, bytes]) -> bool:
        try:
            await self.store.end(job, files)
        except NotStored as error:
            log.error("job.was_not_stored", job=job.id, reason=str(error))
            return False
        return True

    async def _change(self, each: OpenJob, **changes: Any) -> None:
        if each.is_ending:
            return
        each.job = replace(each.job, **changes)
        try:
            await self.store.change(each.job)
        except NotStored as error:
            log.error("job.was_not_stored", job=each.job.id, reason=str(error))

    async def _sweep(self) -> None:
        """Store the ends that could not be stored, and forget what is too old."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for each in [each for each in self._open.values() if each.job.has_ended]:
                if await self._store_end(each.job, each.files):
                    del self._open[each.job.id]
            await make_room(self.store, self.limits, now_s=self.clock())

    def _own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
