"""Server-sent events: how they look, and how they go out without waiting for ever for a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from aiohttp import web

from epe.server.service import REQUEST_ID
from epe.telemetry.log import get_logger

EVENT_STREAM = "text/event-stream"
# A reader that takes nothing for this long is let go: nobody keeps what it does not read.
STALLED_S = 60.0
# Proxies close a connection on which nothing comes; a line with a colon in front is no event.
KEEPALIVE_S = 15.0
KEEPALIVE = b": keepalive\n\n"

_log = get_logger("server")


def sse(name: str, data: object) -> bytes:
    """One event with JSON data."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


async def open_stream(http: web.Request) -> web.StreamResponse:
    """The answer, begun: caches and proxies are told to hand on each event at once."""
    headers = {"Content-Type": EVENT_STREAM, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    stream = web.StreamResponse(headers=headers)
    await stream.prepare(http)
    return stream


async def send_pieces(http: web.Request, stream: web.StreamResponse, pieces: Iterable[bytes]) -> bool:
    """Send one piece after the other, with the loop free between them; False if the reader was let go."""
    try:
        for piece in pieces:
            async with asyncio.timeout(STALLED_S):
                await stream.write(piece)
            await asyncio.sleep(0)
    except TimeoutError:
        _log.warning("client.stalled", request_id=http[REQUEST_ID], stalled_s=STALLED_S)
        if http.transport is not None:
            http.transport.abort()
        return False
    return True
