"""`GET /v1/events`: what goes on in the service, for any number of readers, some of whom do not read.

What happens within a tick goes out as one chunk, the same bytes for everybody; of a request's progress only the last
counts. A reader that falls behind loses the oldest chunks, and is told how many.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from epe.messages import Admitted, Departed, Event, LayoutChanged, Progress, Turned
from epe.server.live import live_request
from epe.server.sse import KEEPALIVE, KEEPALIVE_S, open_stream, send_pieces, sse

# What one reader that is behind may have before it, in chunks.
MAX_CHUNKS = 32
# Comings and goings of one tick; of more the first are left out, and counted.
MAX_NEWS = 1000
_TICK_S = 0.1
# With many readers the ticks are longer, and a chunk goes to a few of them at a time, so that they never take the loop
# for themselves.
_TICK_PER_READER_S = 0.0005
_READERS_AT_A_TIME = 32


class Reader:
    """One who watches. Its chunks are shared with all others; it is woken for each."""

    def __init__(self) -> None:
        self.chunks: deque[bytes] = deque(maxlen=MAX_CHUNKS)
        self.num_lost = 0
        self.is_over = False
        self._awake = asyncio.Event()

    def put(self, chunk: bytes) -> None:
        self.num_lost += len(self.chunks) == MAX_CHUNKS
        self.chunks.append(chunk)
        self._awake.set()

    def end(self) -> None:
        """Nothing comes any more."""
        self.is_over = True
        self._awake.set()

    async def next(self) -> bytes | None:
        """The next chunk, a sign of life where there is none for a while, None at the end."""
        if not self.chunks and not self.is_over:
            self._awake.clear()
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    await self._awake.wait()
            except TimeoutError:
                return KEEPALIVE
        if self.num_lost:
            num_lost, self.num_lost = self.num_lost, 0
            return sse("events.lost", {"chunks": num_lost})
        return self.chunks.popleft() if self.chunks else None


class Events:
    """One for each service; hears of all that goes on, and keeps nothing where nobody watches."""

    def __init__(self) -> None:
        self.readers: dict[Reader, None] = {}
        self.num_lost = 0
        self._layout = LayoutChanged(lanes=())
        self._layout_is_new = False
        self._progress: dict[str, Progress] = {}
        self._news: deque[bytes] = deque(maxlen=MAX_NEWS)
        self._num_left_out = 0
        self._tick: asyncio.Handle | None = None

    def hear(self, event: Event) -> None:
        """Called for each event; takes no time worth a mention."""
        if isinstance(event, LayoutChanged):
            self._layout, self._layout_is_new = event, bool(self.readers)
        if not self.readers:
            return
        match event:
            case Progress(request_id=request_id):
                self._progress[request_id] = event
            case Admitted() | Turned() | Departed():
                if isinstance(event, Departed):
                    self._progress.pop(event.request.id, None)
                self._num_left_out += len(self._news) == MAX_NEWS
                self._news.append(_news(event))
        if self._tick is None:
            self._set_tick()

    def _set_tick(self) -> None:
        tick_s = max(_TICK_S, len(self.readers) * _TICK_PER_READER_S)
        self._tick = asyncio.get_running_loop().call_later(tick_s, self._flush)

    def begin(self) -> Reader:
        """A new reader, who first hears how things are."""
        reader = Reader()
        reader.put(b"retry: 2000\n\n" + sse("layout.changed", self._layout_data()))
        self.readers[reader] = None
        return reader

    def leave(self, reader: Reader) -> None:
        self.num_lost += reader.num_lost
        self.readers.pop(reader, None)

    async def close(self, app: web.Application) -> None:
        """Let the readers go, so that the end of the service does not wait for them."""
        for reader in self.readers:
            reader.end()

    def _flush(self) -> None:
        chunk = self._chunk()
        self._hand_out(chunk, list(self.readers) if chunk else ())

    def _hand_out(self, chunk: bytes, readers: Sequence[Reader]) -> None:
        """Give a chunk to a few readers, and then to the others. The next chunk comes when all have this one."""
        for reader in readers[:_READERS_AT_A_TIME]:
            reader.put(chunk)
        if others := readers[_READERS_AT_A_TIME:]:
            self._tick = asyncio.get_running_loop().call_soon(self._hand_out, chunk, others)
            return
        self._tick = None
        if self._news or self._progress or self._layout_is_new:
            self._set_tick()

    def _chunk(self) -> bytes:
        """What has happened since the last tick; nothing of it is kept."""
        parts = [*self._news, *map(_progressed, self._progress.values())]
        if self._layout_is_new:
            parts.append(sse("layout.changed", self._layout_data()))
        if self._num_left_out:
            parts.insert(0, sse("events.left_out", {"events": self._num_left_out}))
        self._news.clear()
        self._progress.clear()
        self._layout_is_new, self._num_left_out = False, 0
        return b"".join(parts)

    def _layout_data(self) -> dict[str, Any]:
        return {"at": time.time(), "lanes": self._layout.lanes}


def _progressed(progress: Progress) -> bytes:
    data = {"id": progress.request_id, "stage": progress.stage, "step": progress.step}
    return sse(
        "request.progressed", data | {"num_inference_steps": progress.num_steps, "ranks": progress.ranks}
    )


def _news(event: Admitted | Turned | Departed) -> bytes:
    """Nobody's prompt or name is in it."""
    match event:
        case Admitted():
            return sse("request.admitted", live_request(event))
        case Turned(request=request, failure=failure):
            return sse("request.refused", {"id": request.id, "kind": failure.kind, "reason": failure.message})
        case Departed(request=request, ended=ended):
            data = {"id": request.id, "status": "failed" if ended.failure else "completed"}
            failure_data = (
                {"kind": ended.failure.kind, "reason": ended.failure.message} if ended.failure else {}
            )
            return sse("request.ended", data | failure_data | {"account": ended.account})


EVENTS = web.AppKey("events", Events)


async def get_events(http: web.Request) -> web.StreamResponse:
    """Events until the reader leaves, or the service ends."""
    events = http.app[EVENTS]
    # Before it is a reader: where it has left already this fails, and nobody would forget it.
    stream = await open_stream(http)
    reader = events.begin()
    try:
        while (chunk := await reader.next()) is not None:
            if not await send_pieces(http, stream, [chunk]):
                break
    except ConnectionError:
        pass  # it has left, as all of them do
    finally:
        events.leave(reader)
    return stream
