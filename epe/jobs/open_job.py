"""A job that is at work: its requests in the engine's hands, and who waits for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from epe.errors import EpeError
from epe.jobs.engine import Engine, Handle
from epe.jobs.job import Job, ResultFile, finished
from epe.messages import Again, Progress, Request
from epe.transport.link import Parcel


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a client hands in: the job's id, its requests, and the client's key with the digest of what came with it."""

    id: str
    requests: tuple[Request, ...]
    client_id: str = ""
    key: str | None = None
    digest: str = ""
    warnings: tuple[str, ...] = ()

    def accepted(self, *, made_for: str, now_s: float) -> Job:
        """The job that is taken now."""
        return Job(
            id=self.id,
            requests=self.requests,
            accepted=(),
            made_for=made_for,
            accepted_at_s=now_s,
            client_id=self.client_id,
            key=self.key,
            digest=self.digest,
            warnings=self.warnings,
        )


class OpenJob:
    """A job that has not ended, or whose end is not stored yet (then `files` are its results). `progressed` is called
    with each step that is done."""

    def __init__(self, job: Job, *, progressed: Callable[[OpenJob], None]) -> None:
        self.job = job
        self.files: dict[str, bytes] = {}
        self.is_ending = False
        self._progressed = progressed
        self._handles: list[Handle] = []
        self._steps: dict[str, int] = {}
        self._ended: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        # An outcome that nobody waits for is not an error of ours.
        self._ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    @property
    def is_at_work(self) -> bool:
        return bool(self._handles)

    @property
    def num_steps_done(self) -> int:
        return sum(self._steps.values())

    async def hand_in(
        self, engine: Engine, *, age_s: float | None = None, states: Mapping[str, Parcel | None] | None = None
    ) -> None:
        """Have all requests drawn, or none of them; those of an earlier life of the service have an age, and go on from
        the states that are there. Raises what the engine raises when it refuses one."""
        try:
            for request in self.job.requests:
                state = states.get(request.id) if states else None
                step = state.message.header.step if state else None
                if state and state.message.header.reuse is not None:
                    request = replace(request, reuse=state.message.header.reuse)
                again = None if age_s is None else Again(age_s=age_s, step=step)
                self._handles.append(
                    await engine.submit(request, watcher=self._watch, again=again, state=state)
                )
        except BaseException:
            self.withdraw()
            self._handles.clear()
            raise
        if age_s is None:  # what was promised once stays the promise
            self.job = replace(self.job, accepted=tuple(handle.accepted for handle in self._handles))

    def withdraw(self) -> None:
        """Have nothing of it drawn any more."""
        for handle in self._handles:
            handle.cancel()

    async def drawn(self, clock: Callable[[], float]) -> tuple[Job, dict[str, bytes]]:
        """Wait for all requests: the finished job and its files by name. When one of them fails, the others are
        withdrawn, and its error is raised."""
        waiting = [asyncio.ensure_future(handle.result()) for handle in self._handles]
        try:
            results = await asyncio.gather(*waiting)
        except EpeError:
            self.withdraw()
            raise
        finally:
            for each in waiting:
                each.cancel()
        data = {
            request.id: result.data or b"" for request, result in zip(self.job.requests, results, strict=True)
        }
        files = tuple(
            ResultFile(name=name, media_type=result.media_type, num_bytes=len(data[name]))
            for name, result in zip(data, results, strict=True)
        )
        accounts = tuple(result.account for result in results)
        return finished(self.job, accounts=accounts, files=files, now_s=clock()), data

    async def ended(self) -> Job:
        """Wait for its end. Raises `Gone` when the service ends before it."""
        return await asyncio.shield(self._ended)

    def when_ended(self, call: Callable[[], None]) -> None:
        """Call when it has ended, or the service before it."""
        self._ended.add_done_callback(lambda _: call())

    def end(self) -> None:
        """Tell those who wait that it has ended."""
        if not self._ended.done():
            self._ended.set_result(self.job)

    def give_up(self, error: EpeError) -> None:
        """Tell those who wait that its end is not for this life of the service."""
        if not self._ended.done():
            self._ended.set_exception(error)

    def _watch(self, progress: Progress) -> None:
        self._steps[progress.request_id] = max(progress.step, self._steps.get(progress.request_id, 0))
        self._progressed(self)
