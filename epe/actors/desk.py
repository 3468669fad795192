"""The desk: where the world outside hands requests in and waits for what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from epe.actors.core import Actor, Down
from epe.actors.directory import Directory
from epe.actors.outcome import error_of
from epe.errors import BadRequest, Gone
from epe.messages import (
    Accepted,
    Account,
    Again,
    Artifact,
    Cancel,
    Drain,
    Ended,
    Inspect,
    Progress,
    Rejected,
    Request,
    Status,
    Submit,
)
from epe.transport.link import Parcel

ASK_TIMEOUT_S = 30.0

Watcher = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request: the file, or for raw output uint8 pixels (frames, height, width, 3)."""

    media_type: str
    data: bytes
    pixels: Any
    account: Account


class Handle:
    """One submitted request, held by whoever submitted it."""

    def __init__(self, desk: Desk, accepted: Accepted, ending: asyncio.Future[Result]) -> None:
        self.request_id = accepted.request_id
        self.accepted = accepted
        self._desk = desk
        self._ending = ending

    async def result(self) -> Result:
        """The finished request; raises the error that ended it. Leaving early does not cancel the work."""
        return await asyncio.shield(self._ending)

    def cancel(self) -> None:
        """End the request at the next step boundary."""
        self._desk.cancel(self.request_id)


class _Entry:
    def __init__(self, watcher: Watcher | None) -> None:
        self.ending: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.watcher = watcher
        self.artifact: Artifact | None = None
        self.pixels: Any = None


class Desk(Actor):
    """Lives on the leader. Its methods are called by tasks outside the actors; its messages come from within."""

    inbox = 8192

    def __init__(self, *, directory: Directory) -> None:
        self.directory = directory
        self.entries: dict[str, _Entry] = {}

    async def started(self) -> None:
        self.watch(self.directory.planner)

    async def submit(
        self, request: Request, *, watcher: Watcher | None = None, again: Again | None = None
    ) -> Handle:
        """Hand a request to the planner, or one of an earlier life of the service `again`; raises `Refused` or
        `BadRequest` when it is not taken."""
        if request.id in self.entries:
            raise BadRequest(f"request id {request.id!r} is already in work; use another one", param="id")
        entry = self.entries[request.id] = _Entry(watcher)
        # An outcome that nobody waits for is not an error of ours.
        entry.ending.add_done_callback(lambda ending: ending.cancelled() or ending.exception())
        try:
            answer = await self.ref(self.directory.planner).ask(
                Submit(request=request, again=again), timeout_s=ASK_TIMEOUT_S
            )
        except BaseException:
            self.entries.pop(request.id, None)
            self.cancel(request.id)
            raise
        if isinstance(answer, Rejected):
            del self.entries[request.id]
            raise error_of(answer.failure)
        return Handle(self, answer, entry.ending)

    def cancel(self, request_id: str) -> None:
        """Ask the planner to end a request; nothing happens if it has ended already."""
        self.ref(self.directory.planner).tell(Cancel(request_id=request_id))

    async def status(self) -> Status:
        """The service as the planner sees it."""
        status: Status = await self.ref(self.directory.planner).ask(Inspect(), timeout_s=ASK_TIMEOUT_S)
        return status

    async def drain(self, *, reason: str, timeout_s: float) -> None:
        """Take nothing new and wait until all that was taken has ended."""
        await self.ref(self.directory.planner).ask(Drain(reason=reason), timeout_s=timeout_s)

    def give_up(self, reason: str) -> None:
        """Tell everyone who waits that there will be no picture."""
        for entry in self.entries.values():
            if not entry.ending.done():
                entry.ending.set_exception(Gone(reason))
        self.entries.clear()

    async def receive(self, message: object) -> None:
        match message:
            case Progress(request_id=request_id):
                entry = self.entries.get(request_id)
                if entry is not None and entry.watcher is not None:
                    entry.watcher(message)
            case Parcel(message=Artifact(request_id=request_id) as artifact, tensors=tensors):
                if entry := self.entries.get(request_id):
                    entry.artifact = artifact
                    entry.pixels = tensors[0] if tensors else None
            case Ended():
                self._ended(message)
            case Down(reason=reason):
                self.give_up(f"the planner ended: {reason}")

    def _ended(self, message: Ended) -> None:
        entry = self.entries.pop(message.request_id, None)
        if entry is None or entry.ending.done():
            return
        if message.failure is not None:
            entry.ending.set_exception(error_of(message.failure))
            return
        assert entry.artifact is not None, "the artifact comes before the end"
        result = Result(entry.artifact.media_type, entry.artifact.data, entry.pixels, message.account)
        entry.ending.set_result(result)
