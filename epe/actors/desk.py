"""The desk: where the world outside hands requests in and waits for what becomes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from epe.actors.core import Actor, Down
from epe.actors.directory import Directory
from epe.actors.outcome import error_of
from epe.actors.previews import Previews
from epe.errors import BadRequest, Gone, UnknownRank
from epe.messages import (
    Accepted,
    Account,
    Action,
    Admitted,
    Again,
    Artifact,
    Cancel,
    Departed,
    Drain,
    Ended,
    Event,
    Inspect,
    LayoutChanged,
    Live,
    Operate,
    Palette,
    Predict,
    Predicted,
    Preview,
    Progress,
    Rejected,
    Request,
    RestartRanks,
    Status,
    Submit,
    Turned,
)
from epe.transport.link import Parcel

ASK_TIMEOUT_S = 30.0
# Previews of a video, for whoever asks for one while it is drawn.
NUM_VIDEO_PREVIEWS = 3

Watcher = Callable[[Progress], None]
PreviewWatcher = Callable[[Preview], None]
Listener = Callable[[Event], None]


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
    def __init__(self, request: Request, watcher: Watcher | None, *, arrived_at: float) -> None:
        self.ending: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.request = request
        self.watcher = watcher
        self.arrived_at = arrived_at
        self.accepted: Accepted | None = None
        self.progress: Progress | None = None
        self.preview: Preview | None = None
        self.artifact: Artifact | None = None
        self.pixels: Any = None


class Desk(Actor):
    """Lives on the leader. Its methods are called by tasks outside the actors; its messages come from within."""

    inbox = 8192

    def __init__(
        self,
        *,
        directory: Directory,
        previews: Previews | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory
        self.previews = previews
        self.wall_clock = wall_clock
        self.entries: dict[str, _Entry] = {}
        self._listeners: dict[Listener, None] = {}

    async def started(self) -> None:
        self.watch(self.directory.planner)

    async def submit(
        self,
        request: Request,
        *,
        watcher: Watcher | None = None,
        num_previews: int = 0,
        preview_watcher: PreviewWatcher | None = None,
        again: Again | None = None,
        state: Parcel | None = None,
    ) -> Handle:
        """Hand a request to the planner, or one of an earlier life of the service `again`, with the `Checkpoint` from
        which it goes on; raises `Refused` or `BadRequest` when it is not taken. `watcher` is called with its progress,
        `preview_watcher` with up to `num_previews` previews."""
        if request.id in self.entries:
            raise BadRequest(f"request id {request.id!r} is already in work; use another one", param="id")
        arrived_at = self.wall_clock() - (0.0 if again is None else again.age_s)
        entry = self.entries[request.id] = _Entry(request, watcher, arrived_at=arrived_at)
        # An outcome that nobody waits for is not an error of ours.
        entry.ending.add_done_callback(lambda ending: ending.cancelled() or ending.exception())
        if state is not None:
            # The planner knows of the request before it hears of the state: it is asked before anything else can run.
            self.ref(self.directory.checkpoints).tell(state)
        self._want_previews(entry, num_previews, preview_watcher)
        accepted = entry.accepted = await self._accepted(request, again)
        self._tell(Admitted(request=request, accepted=accepted, arrived_at=entry.arrived_at))
        return Handle(self, accepted, entry.ending)

    async def _accepted(self, request: Request, again: Again | None) -> Accepted:
        """The planner's promise; where there is none the request is forgotten."""
        try:
            answer: Accepted | Rejected = await self.ref(self.directory.planner).ask(
                Submit(request=request, again=again), timeout_s=ASK_TIMEOUT_S
            )
        except BaseException:
            self._forget(request.id)
            self.cancel(request.id)
            raise
        if isinstance(answer, Rejected):
            self._forget(request.id)
            self._tell(Turned(request=request, failure=answer.failure))
            raise error_of(answer.failure)
        return answer

    def _want_previews(self, entry: _Entry, num_previews: int, watcher: PreviewWatcher | None) -> None:
        """Those of a picture go to whoever asked for them when it came, the last one of a video is kept."""

        def keep(preview: Preview) -> None:
            entry.preview = preview

        if self.previews is None:
            return
        if entry.request.output_format.holds == "video":
            self.previews.begin(entry.request, num_previews=NUM_VIDEO_PREVIEWS, tell=keep)
        elif watcher is not None:
            self.previews.begin(entry.request, num_previews=num_previews, tell=watcher)

    def preview_of(self, request_id: str) -> bytes | None:
        """The last preview of a video that is drawn: its first frame, as WebP."""
        entry = self.entries.get(request_id)
        return None if entry is None or entry.preview is None else entry.preview.data

    def cancel(self, request_id: str) -> None:
        """Ask the planner to end a request; nothing happens if it has ended already."""
        self.ref(self.directory.planner).tell(Cancel(request_id=request_id))

    async def end(self, request_id: str) -> None:
        """Cancel a request, whoever has submitted it, and wait until it has ended; raises nothing, whatever its end."""
        if entry := self.entries.get(request_id):
            self.cancel(request_id)
            await asyncio.wait({entry.ending})

    async def status(self) -> Status:
        """The service as the planner sees it."""
        status: Status = await self.ref(self.directory.planner).ask(Inspect(), timeout_s=ASK_TIMEOUT_S)
        return status

    async def operate(self, action: Action, rank: int) -> Status:
        """Cordon, drain or readmit a rank; raises `UnknownRank`, or `Conflict` where that cannot be now."""
        if not 0 <= rank < self.directory.world_size:
            known = f"0 to {self.directory.world_size - 1}" if self.directory.world_size > 1 else "0"
            raise UnknownRank(f"rank {rank} is none of this service; its ranks are {known}", param="rank")
        return await self._ordered(Operate(action=action, rank=rank))

    async def restart_ranks(self, *, weights: str) -> Status:
        """Begin to restart all ranks, one after the other; raises `Conflict` where that cannot be now."""
        return await self._ordered(RestartRanks(weights=weights))

    async def _ordered(self, order: Operate | RestartRanks) -> Status:
        answer = await self.ref(self.directory.planner).ask(order, timeout_s=ASK_TIMEOUT_S)
        if isinstance(answer, Rejected):
            raise error_of(answer.failure)
        status: Status = answer
        return status

    async def predict(self, requests: Sequence[Request]) -> Predicted:
        """What these requests would cost, and when they would end, if they came now; raises as `submit` does."""
        answer = await self.ref(self.directory.planner).ask(
            Predict(requests=tuple(requests)), timeout_s=ASK_TIMEOUT_S
        )
        if isinstance(answer, Rejected):
            raise error_of(answer.failure)
        predicted: Predicted = answer
        return predicted

    def requests(self) -> Iterator[Live]:
        """The requests that were taken and have not ended, in the order in which they came."""
        for request_id in self.entries:
            if (live := self.find(request_id)) is not None:
                yield live

    @property
    def num_requests(self) -> int:
        """How many these are."""
        return sum(entry.accepted is not None for entry in self.entries.values())

    def find(self, request_id: str) -> Live | None:
        """A request that was taken and has not ended."""
        entry = self.entries.get(request_id)
        if entry is None or entry.accepted is None:
            return None
        return Live(
            request=entry.request,
            accepted=entry.accepted,
            arrived_at=entry.arrived_at,
            progress=entry.progress,
        )

    def listen(self, listener: Listener) -> None:
        """Have `listener` called with all that goes on from now on; it must not raise, nor take long."""
        self._listeners[listener] = None

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
                self._progressed(self.entries.get(request_id), message)
            case LayoutChanged():
                self._tell(message)
            case Palette():
                if self.previews is not None:
                    self.previews.palette = message
            case Parcel(message=Artifact(request_id=request_id) as artifact, tensors=tensors):
                if entry := self.entries.get(request_id):
                    entry.artifact = artifact
                    entry.pixels = tensors[0] if tensors else None
            case Ended():
                self._ended(message)
            case Down(reason=reason):
                self.give_up(f"the planner ended: {reason}")

    def _forget(self, request_id: str) -> _Entry | None:
        if self.previews is not None:
            self.previews.end(request_id)
        return self.entries.pop(request_id, None)

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def _progressed(self, entry: _Entry | None, message: Progress) -> None:
        self._tell(message)
        if entry is not None:
            entry.progress = message
            if entry.watcher is not None:
                entry.watcher(message)

    def _ended(self, message: Ended) -> None:
        entry = self._forget(message.request_id)
        if entry is None or entry.ending.done():
            return
        if entry.accepted is not None:
            self._tell(
                Departed(
                    request=entry.request,
                    accepted=entry.accepted,
                    arrived_at=entry.arrived_at,
                    ended=message,
                )
            )
        if message.failure is not None:
            entry.ending.set_exception(error_of(message.failure))
            return
        assert entry.artifact is not None, "the artifact comes before the end"
        result = Result(entry.artifact.media_type, entry.artifact.data, entry.pixels, message.account)
        entry.ending.set_result(result)
