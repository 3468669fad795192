"""The last states of requests that are kept, so that a job goes on in the next life from where it was.

A state on disk only saves work: without it a job begins anew, with the same bits. So the disk is never waited for, and
of the states that come while one is written only the newest counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from epe.messages import StateHeader
from epe.telemetry.log import get_logger
from epe.transport.link import Parcel

RunElsewhere = Callable[..., Awaitable[Any]]
Tensors = Mapping[str, Any]

log = get_logger("jobs")


class StateFiles(Protocol):
    """One file for each request. All of it blocks, and raises `OSError`."""

    def write(self, header: StateHeader, tensors: Tensors) -> None: ...

    def read(self, request_id: str) -> Parcel | None:
        """A `Checkpoint` with its tensors; None if there is none that this service could go on from."""

    def remove(self, request_id: str) -> None: ...

    def remove_others(self, request_ids: Iterable[str]) -> None:
        """Remove the states of all other requests."""


class States:
    """Mutable, on the leader's loop. Without `files` nothing is kept."""

    # A job that is interrupted repeats so much at most, beside the write that was under way.
    EVERY_S = 2.0

    def __init__(
        self, files: StateFiles | None = None, *, run_elsewhere: RunElsewhere = asyncio.to_thread
    ) -> None:
        self._files = files
        self._run_elsewhere = run_elsewhere
        self._wanted: set[str] = set()
        self._newest: dict[str, tuple[StateHeader, Tensors]] = {}
        self._removing: set[str] = set()
        self._writing: asyncio.Task[None] | None = None

    async def open(self, request_ids: Iterable[str]) -> None:
        """Keep the states of these requests, and of no others that may lie there."""
        self.want(request_ids)
        if self._files is not None:
            await self._try(self._files.remove_others, set(self._wanted))

    def want(self, request_ids: Iterable[str]) -> None:
        """From now on keep the states of these requests."""
        if self._files is not None:
            self._wanted.update(request_ids)

    def forget(self, request_ids: Iterable[str]) -> None:
        """These requests have ended."""
        for request_id in self._wanted.intersection(request_ids):
            self._wanted.discard(request_id)
            self._newest.pop(request_id, None)
            self._removing.add(request_id)
        self._wake()

    def offer(self, header: StateHeader, tensors: Tensors) -> None:
        """A state has reached the leader."""
        if header.request_id in self._wanted:
            self._newest[header.request_id] = (header, tensors)
            self._wake()

    async def load(self, request_id: str) -> Parcel | None:
        """The `Checkpoint` from which a request goes on, if there is one."""
        if self._files is None:
            return None
        found: Parcel | None = await self._try(self._files.read, request_id)
        return found

    async def close(self) -> None:
        """Stop writing; what lies there stays."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    def _wake(self) -> None:
        if self._files is not None and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write(self._files))

    async def _write(self, files: StateFiles) -> None:
        """Until nothing is left to do; what is forgotten is removed after what was being written."""
        while self._newest or self._removing:
            newest, self._newest = self._newest, {}
            for header, tensors in newest.values():
                await self._try(files.write, header, tensors)
            while self._removing:
                await self._try(files.remove, self._removing.pop())
            await asyncio.sleep(self.EVERY_S)

    async def _try(self, work: Callable[..., Any], *args: Any) -> Any:
        try:
            return await self._run_elsewhere(work, *args)
        except OSError as error:
            log.warning("state.was_not_kept", reason=str(error))
            return None
