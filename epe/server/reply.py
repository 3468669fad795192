"""The answer with pictures. Files go out piece by piece: megabytes of base64 at once would stop the loop."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator, Sequence

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from epe.messages import CacheAccount, LaneVisit
from epe.server.drawing import Picture
from epe.server.fetch import url_of
from epe.server.route import JSON
from epe.server.service import SERVICE
from epe.server.sse import send_pieces

# A multiple of 3, so that the base64 of the pieces, one after the other, is that of the whole.
_PIECE_BYTES = 3 * 2**16
_EMPTY_PICTURE = b'"b64_json":""'


class DrawnAs(Struct, frozen=True, kw_only=True):
    """What happened to one request: its timings in seconds, the lanes that it used, and what FlexCache did."""

    request_id: str
    height: int
    width: int
    num_inference_steps: int
    guidance_scale: float
    queue_s: float
    encode_s: float
    denoise_s: float
    decode_s: float
    finish_s: float
    total_s: float
    predicted_s: float
    predicted_from: str
    late: bool
    num_migrations: int
    num_recoveries: int
    num_repeated_steps: int
    cache: CacheAccount | None
    lanes: tuple[LaneVisit, ...]


class PictureData(Struct, frozen=True, kw_only=True):
    """One picture: its file in `b64_json`, or at `url`."""

    seed: int
    epe: DrawnAs
    b64_json: str | UnsetType = UNSET
    url: str | UnsetType = UNSET


class ImagesReply(Struct, frozen=True, kw_only=True):
    """OpenAI's shape; `epe` is that of the picture that was finished last."""

    created: int
    data: tuple[PictureData, ...]
    size: str
    output_format: str
    warnings: tuple[str, ...]
    epe: DrawnAs


async def answer_pictures(
    http: web.Request, pictures: Sequence[Picture], *, warnings: tuple[str, ...], by_url: bool
) -> web.StreamResponse:
    """The reply with the files in it, or with the addresses from which they can be fetched."""
    if by_url:
        reply = describe(pictures, warnings=warnings, urls=[_kept(each, http) for each in pictures])
        return web.Response(body=msgspec.json.encode(reply), content_type=JSON)
    return await send_pictures(http, describe(pictures, warnings=warnings), pictures)


def _kept(picture: Picture, http: web.Request) -> str:
    name = http.app[SERVICE].results.put(picture.file, media_type=picture.media_type)
    return url_of(name, http)


def describe(
    pictures: Sequence[Picture], *, warnings: tuple[str, ...], urls: Sequence[str] | None = None
) -> ImagesReply:
    """The reply: with these addresses of the files, or with places for the files themselves."""
    places: list[dict[str, str]] = (
        [{"b64_json": ""} for _ in pictures] if urls is None else [{"url": url} for url in urls]
    )
    data = tuple(
        PictureData(seed=each.request.seed, epe=drawn_as(each), **place)
        for each, place in zip(pictures, places, strict=True)
    )
    request = pictures[0].request
    return ImagesReply(
        created=int(time.time()),
        data=data,
        size=f"{request.width}x{request.height}",
        output_format=request.output_format,
        warnings=warnings,
        epe=max((each.epe for each in data), key=lambda drawn: drawn.total_s),
    )


def drawn_as(picture: Picture) -> DrawnAs:
    """What the account of a request says, for its client."""
    request, account = picture.request, picture.account
    return DrawnAs(
        request_id=request.id,
        height=request.height,
        width=request.width,
        num_inference_steps=request.num_steps,
        guidance_scale=request.guidance_scale,
        queue_s=account.queue_s,
        encode_s=account.encode_s,
        denoise_s=account.denoise_s,
        decode_s=account.decode_s,
        finish_s=account.finish_s,
        total_s=account.total_s,
        predicted_s=picture.accepted.predicted_s,
        predicted_from=picture.accepted.predicted_from,
        late=picture.accepted.late,
        num_migrations=account.num_migrations,
        num_recoveries=account.num_recoveries,
        num_repeated_steps=account.num_repeated_steps,
        cache=account.cache,
        lanes=account.visits,
    )


async def send_pictures(
    http: web.Request, reply: ImagesReply, pictures: Sequence[Picture]
) -> web.StreamResponse:
    """Send the reply with the files in it: small ones at once, else the loop is free between two pieces."""
    # A text in JSON has no bare quotation mark, so this stands nowhere but where the files belong.
    frame = msgspec.json.encode(reply).split(_EMPTY_PICTURE)
    files = [each.file for each in pictures]
    num_bytes = num_bytes_of(frame, files)
    if num_bytes <= _PIECE_BYTES:
        return web.Response(body=b"".join(pieces_of(frame, files)), content_type=JSON)
    response = web.StreamResponse(headers={"Content-Type": JSON})
    response.content_length = num_bytes
    await response.prepare(http)
    if await send_pieces(http, response, pieces_of(frame, files)):
        await response.write_eof()
    return response


def base64_pieces(file: bytes) -> Iterator[bytes]:
    """The base64 of a file in pieces of 256 KiB."""
    for start in range(0, len(file), _PIECE_BYTES):
        yield b64encode(file[start : start + _PIECE_BYTES])


def pieces_of(frame: Sequence[bytes], files: Sequence[bytes]) -> Iterator[bytes]:
    """The body: between two parts of the frame stands the base64 of a file, cut into pieces of 256 KiB."""
    yield frame[0]
    for file, after in zip(files, frame[1:], strict=True):
        yield b'"b64_json":"'
        yield from base64_pieces(file)
        yield b'"' + after


def num_bytes_of(frame: Sequence[bytes], files: Sequence[bytes]) -> int:
    """The length of the body, known before any of it is made."""
    base64_bytes = sum(-(-len(file) // 3) * 4 for file in files)
    return sum(map(len, frame)) + len(files) * len(_EMPTY_PICTURE) + base64_bytes
