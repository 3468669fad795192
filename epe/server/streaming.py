"""A picture as server-sent events, in OpenAI's words: previews while it forms, then the whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from epe.errors import EpeError
from epe.messages import Preview, Request
from epe.server.answers import detail_of
from epe.server.drawing import Picture, finished
from epe.server.reply import DrawnAs, base64_pieces, drawn_as
from epe.server.service import SERVICE
from epe.server.sse import KEEPALIVE, KEEPALIVE_S, open_stream, send_pieces, sse

_EMPTY = b'"b64_json":""'


class _Event(Struct, frozen=True, kw_only=True):
    """What both kinds of event have in common; the file comes in the place of the empty text."""

    type: str
    created_at: int
    size: str
    output_format: str
    quality: Literal["auto"] = "auto"
    background: Literal["opaque"] = "opaque"
    b64_json: str = ""


class PartialImage(_Event, frozen=True, kw_only=True):
    """A preview, after `step` steps."""

    partial_image_index: int
    step: int


class CompletedImage(_Event, frozen=True, kw_only=True):
    """The finished picture. Nothing is counted in tokens here."""

    usage: dict[str, Any]
    seed: int
    epe: DrawnAs
    warnings: tuple[str, ...]


async def stream_picture(
    http: web.Request, request: Request, *, num_previews: int, warnings: tuple[str, ...]
) -> web.StreamResponse:
    """Draw one request. What is refused is an answer as ever; what fails later is an event `error`.

    A client that leaves, or stops to read, cancels the request at its next step boundary.
    """
    # At most `num_previews` ever come, and None once there is nothing more to wait for.
    coming: asyncio.Queue[Preview | None] = asyncio.Queue()
    engine = http.app[SERVICE].engine
    handle = await engine.submit(request, num_previews=num_previews, preview_watcher=coming.put_nowait)
    drawing = asyncio.ensure_future(finished(request, handle))
    drawing.add_done_callback(partial(_end, coming))
    try:
        stream = await open_stream(http)
        if await _send_previews(http, stream, request, coming):
            await send_pieces(http, stream, await _last(drawing, warnings))
    finally:
        drawing.cancel()
        handle.cancel()  # of no effect where it has ended
    return stream


def _end(coming: asyncio.Queue[Preview | None], drawing: asyncio.Future[Picture]) -> None:
    coming.put_nowait(None)
    if not drawing.cancelled():
        drawing.exception()  # of a failure nobody may be left to hear


async def _send_previews(
    http: web.Request, stream: web.StreamResponse, request: Request, coming: asyncio.Queue[Preview | None]
) -> bool:
    """All that come, and signs of life between them; False if the reader was let go."""
    while True:
        pieces: Iterable[bytes] = [KEEPALIVE]
        with suppress(TimeoutError):
            async with asyncio.timeout(KEEPALIVE_S):
                if (preview := await coming.get()) is None:
                    return True
            pieces = _partial(request, preview)
        if not await send_pieces(http, stream, pieces):
            return False


async def _last(drawing: asyncio.Future[Picture], warnings: tuple[str, ...]) -> Iterator[bytes]:
    try:
        return _completed(await drawing, warnings)
    except EpeError as error:
        return iter([sse("error", {"type": "error", "error": detail_of(error)})])


def _partial(request: Request, preview: Preview) -> Iterator[bytes]:
    name = "image_generation.partial_image"
    event = PartialImage(**_common(name, request), partial_image_index=preview.index, step=preview.step)
    return _with_file(name, event, preview.data)


def _completed(picture: Picture, warnings: tuple[str, ...]) -> Iterator[bytes]:
    name, request = "image_generation.completed", picture.request
    details = {"image_tokens": 0, "text_tokens": 0}
    usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "input_tokens_details": details}
    event = CompletedImage(
        **_common(name, request), usage=usage, seed=request.seed, epe=drawn_as(picture), warnings=warnings
    )
    return _with_file(name, event, picture.file)


def _common(name: str, request: Request) -> dict[str, Any]:
    return {
        "type": name,
        "created_at": int(time.time()),
        "size": f"{request.width}x{request.height}",
        "output_format": request.output_format,
    }


def _with_file(name: str, event: _Event, file: bytes) -> Iterator[bytes]:
    """The event in pieces, with the file in its place."""
    before, after = msgspec.json.encode(event).split(_EMPTY)
    yield b"event: " + name.encode() + b"\ndata: " + before + b'"b64_json":"'
    yield from base64_pieces(file)
    yield b'"' + after + b"\n\n"
