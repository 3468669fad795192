"""An engine in memory: it draws one grey value, and does what a test tells it on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from epe.errors import Conflict, EpeError, Gone, UnknownRank
from epe.media import encode_image, media_type
from epe.messages import (
    Accepted,
    Account,
    Action,
    Again,
    CostsStatus,
    Event,
    LaneVisit,
    Live,
    PolicyStatus,
    Predicted,
    Preview,
    Progress,
    RankStatus,
    Request,
    Stage,
    Status,
    WidthCost,
)
from epe.server.engine import PreviewWatcher
from epe.transport.link import Parcel

RUNNING = Status(
    phase="running",
    ranks=(RankStatus(rank=0, state="idle", device="cpu"), RankStatus(rank=1, state="busy", device="cpu")),
    num_waiting=0,
    num_running=1,
    num_finished=7,
    costs=CostsStatus(origin="kept", num_tasks=5, least_tokens=128, most_tokens=2048),
    policy=PolicyStatus(name="Elastic", fault="Mine: it raised KeyError: 'x'"),
)


# Nobody here looks into the file of a video.
VIDEO = bytes(range(256)) * 4


@dataclass(frozen=True)
class Drawn:
    media_type: str
    data: bytes | None
    account: Account
    pixels: NDArray[np.uint8] | None = None


class StandInHandle:
    def __init__(self, engine: StandIn, request: Request, order: int) -> None:
        self.engine = engine
        self.request = request
        self.order = order
        self.request_id = request.id
        self.accepted = Accepted(request_id=request.id, predicted_s=2.5, late=request.deadline_s == 0.001)

    async def result(self) -> Drawn:
        engine = self.engine
        engine.num_running += 1
        engine.most_running = max(engine.most_running, engine.num_running)
        try:
            await (engine.never if self.request.seed in engine.held else engine.gate).wait()
        finally:
            engine.num_running -= 1
        if (failure := engine.failures.get(self.request.seed)) is not None:
            raise failure
        request = self.request
        data = engine.video
        if request.output_format.holds == "picture":
            data = await asyncio.to_thread(
                encode_image,
                engine.paint(request),
                format=request.output_format,
                compression=request.output_compression,
            )
        account = account_of(request.id, order=self.order)
        return Drawn(media_type(request.output_format), data, account)

    def cancel(self) -> None:
        self.engine.cancelled.append(self.request_id)


def account_of(request_id: str, *, order: int) -> Account:
    visit = LaneVisit(stage=Stage.DENOISE, ranks=(0, 1), first_step=0, num_steps=4, start_s=0.5, end_s=1.5)
    return Account(
        request_id=request_id,
        queue_s=0.25,
        denoise_s=1.0,
        total_s=2.0 + order,
        num_migrations=1,
        visits=(visit,),
    )


@dataclass
class StandIn:
    """Results wait for `gate`, those of the seeds in `held` for ever; those in `failures` fail."""

    status_now: Status = RUNNING
    silent: bool = False
    refusal: EpeError | None = None
    failures: dict[int, Exception] = field(default_factory=dict)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    held: set[int] = field(default_factory=set)
    never: asyncio.Event = field(default_factory=asyncio.Event)
    submitted: list[Request] = field(default_factory=list)
    predicted: list[Request] = field(default_factory=list)
    live: list[Live] = field(default_factory=list)
    listeners: list[Callable[[Event], None]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    watchers: dict[str, Callable[[Progress], None]] = field(default_factory=dict)
    noisy: bool = False
    video: bytes = VIDEO
    previews: dict[str, bytes] = field(default_factory=dict)
    preview: Callable[[int], bytes] = lambda index: b"preview %d" % index
    num_running: int = 0
    most_running: int = 0

    async def submit(
        self,
        request: Request,
        *,
        watcher: Callable[[Progress], None] | None = None,
        again: Again | None = None,
        state: Parcel | None = None,
        num_previews: int = 0,
        preview_watcher: PreviewWatcher | None = None,
    ) -> StandInHandle:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(request)
        for index in range(num_previews if preview_watcher else 0):
            data = self.preview(index)
            preview_watcher(Preview(request_id=request.id, index=index, step=index + 1, data=data))
        if watcher is not None:
            self.watchers[request.id] = watcher
        return StandInHandle(self, request, order=len(self.submitted))

    async def predict(self, requests: Sequence[Request]) -> Predicted:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        self.predicted.extend(requests)
        accepted = tuple(
            Accepted(request_id=each.id, predicted_s=2.5 + i, late=each.deadline_s == 0.001)
            for i, each in enumerate(requests)
        )
        widths = (
            WidthCost(width=1, denoise_s=8.0, rank_s=8.0),
            WidthCost(width=2, denoise_s=5.0, rank_s=10.0),
        )
        return Predicted(accepted=accepted, encode_s=0.1, decode_s=0.2, finish_s=0.3, widths=widths)

    def requests(self) -> Iterator[Live]:
        yield from self.live

    @property
    def num_requests(self) -> int:
        return len(self.live)

    def find(self, request_id: str) -> Live | None:
        return next((each for each in self.live if each.request.id == request_id), None)

    def preview_of(self, request_id: str) -> bytes | None:
        return self.previews.get(request_id)

    async def end(self, request_id: str) -> None:
        await asyncio.sleep(0)
        self.cancelled.append(request_id)
        self.live = [each for each in self.live if each.request.id != request_id]

    def listen(self, listener: Callable[[Event], None]) -> None:
        self.listeners.append(listener)

    def tell(self, event: Event) -> None:
        """Have all who listen hear of it."""
        for listener in self.listeners:
            listener(event)

    async def status(self) -> Status:
        if self.silent:
            raise Gone("the planner is gone")
        return self.status_now

    async def operate(self, action: Action, rank: int) -> Status:
        await asyncio.sleep(0)
        ranks = list(self.status_now.ranks)
        if rank >= len(ranks):
            raise UnknownRank(f"rank {rank} is none of this service; its ranks are 0 to 1", param="rank")
        if ranks[rank].state == "lost":
            raise Conflict(f"{action}: rank {rank} is lost (it was killed); it comes back by itself")
        state = {"cordon": "cordoned", "drain": "draining", "readmit": "idle"}[action]
        ranks[rank] = msgspec.structs.replace(ranks[rank], state=state)
        self.status_now = msgspec.structs.replace(self.status_now, ranks=tuple(ranks))
        return self.status_now

    def is_with(self, rank: int, **changed: Any) -> None:
        """One of its ranks is otherwise from now on."""
        ranks = list(self.status_now.ranks)
        ranks[rank] = msgspec.structs.replace(ranks[rank], **changed)
        self.status_now = msgspec.structs.replace(self.status_now, ranks=tuple(ranks))

    def paint(self, request: Request) -> NDArray[np.uint8]:
        shape = (request.height, request.width, 3)
        if self.noisy:
            return np.random.default_rng(request.seed).integers(0, 256, shape, dtype=np.uint8)
        return np.full(shape, request.seed % 256, dtype=np.uint8)

    def is_in(self, phase: str, *, reason: str = "") -> None:
        self.status_now = msgspec.structs.replace(self.status_now, phase=phase, reason=reason)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the engine has come to a state; a test that waits in vain fails."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  a state of several fields has no event
            await asyncio.sleep(0.005)
