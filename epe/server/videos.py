"""`/v1/videos`, as OpenAI's clients speak it: a job that is asked for, polled, fetched and deleted."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from epe.errors import BadRequest, UnknownJob
from epe.jobs.job import Job, JobState
from epe.jobs.jobs import Jobs
from epe.media import media_type
from epe.media.thumbnail import thumbnail_of
from epe.messages import OutputFormat
from epe.server.answers import detail_of
from epe.server.body import read_fields
from epe.server.drawing import Picture
from epe.server.image_body import resolved, warnings_of
from epe.server.keeping import find_job, key_of, new_id, order_of, raise_error_of, submit_job
from epe.server.reply import DrawnAs, drawn_as
from epe.server.requests import progress_of
from epe.server.route import JSON
from epe.server.service import CLIENT, SERVICE
from epe.server.video_body import VideoBody, to_request
from epe.transport.wire import error_from_wire

# Clients wait so long before they ask again.
POLL_HEADER = "openai-poll-after-ms"
_SOONEST_MS, _LATEST_MS = 200, 10_000
MAX_LISTED = 100
_VARIANTS = (None, "video", "0", "thumbnail")


class VideoError(Struct, frozen=True, kw_only=True):
    """Why a video was not drawn."""

    code: str
    message: str


class DrawnVideo(Struct, frozen=True, kw_only=True):
    """What the service knows beyond OpenAI's fields; `drawn` of a completed video."""

    seed: int
    num_frames: int
    fps: int
    predicted_s: float
    late: bool
    warnings: tuple[str, ...]
    drawn: DrawnAs | None = None


class Video(Struct, frozen=True, kw_only=True):
    """A video as it is now. Times are seconds of the Unix clock; `progress` is in percent and only grows."""

    id: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int
    created_at: int
    completed_at: int | None
    expires_at: int | None
    model: str
    prompt: str
    seconds: str
    size: str
    error: VideoError | None
    epe: DrawnVideo
    remixed_from_video_id: str | None = None
    object: str = "video"


class VideoList(Struct, frozen=True, kw_only=True):
    """One page of videos."""

    data: tuple[Video, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class DeletedVideo(Struct, frozen=True, kw_only=True):
    """A video that is no more."""

    id: str
    deleted: bool = True
    object: str = "video.deleted"


async def create_video(http: web.Request) -> web.Response:
    """Take a video as a job, from JSON or a form."""
    service, client = http.app[SERVICE], http[CLIENT]
    body = await read_fields(http, VideoBody)
    service.check_model(body.model)
    resolve = partial(to_request, body, service, request_id=new_id(http), key_name=client.name)
    request = await resolved(body, service, resolve)
    warnings = warnings_of(body, service)
    job = await submit_job(http, order_of(http, (request,), key=key_of(http), body=body, warnings=warnings))
    return _answer(job, http)


async def get_video(http: web.Request) -> web.Response:
    """The video as it is now: 200 whatever has become of it, since clients ask again when they get an error."""
    return _answer(await find_video(http), http)


async def list_videos(http: web.Request) -> web.Response:
    """Videos that are kept, the newest first unless asked otherwise."""
    service = http.app[SERVICE]
    limit, order = _limit(http), http.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest(f"order {order[:16]!r} is neither asc nor desc", param="order")
    owner = http[CLIENT].name if service.clients.ask_for_keys else None
    after = http.query.get("after")
    found = await _videos(service.jobs, owner, after=after, limit=limit + 1, newest_first=order == "desc")
    videos = tuple(video_of(job, http) for job in found[:limit])
    page = VideoList(
        data=videos,
        first_id=videos[0].id if videos else None,
        last_id=videos[-1].id if videos else None,
        has_more=len(found) > limit,
    )
    return web.Response(body=msgspec.json.encode(page), content_type=JSON)


async def _videos(
    jobs: Jobs, owner: str | None, *, after: str | None, limit: int, newest_first: bool
) -> list[Job]:
    """The first `limit` videos; a store may have pictures too, of another model that was served with it before."""
    videos: list[Job] = []
    while len(videos) < limit:
        page = await jobs.page(owner, after=after, limit=MAX_LISTED, newest_first=newest_first)
        videos += filter(is_video, page)
        if len(page) < MAX_LISTED:
            break
        after = page[-1].id
    return videos[:limit]


async def get_video_content(http: web.Request) -> web.StreamResponse:
    """The file of a completed video, or the part of it that `Range` names; as a variant its thumbnail."""
    job, variant = await find_video(http), http.query.get("variant")
    if variant not in _VARIANTS:
        raise BadRequest(f"variant {variant[:16]!r} is not known; video and thumbnail are", param="variant")
    if not job.has_ended:
        return _preview_of(job, variant, http)
    raise_error_of(job)
    (file,) = job.files
    data = await http.app[SERVICE].jobs.read(job, file)
    if variant == "thumbnail":
        thumbnail = await asyncio.to_thread(thumbnail_of, data)
        return _part_of(thumbnail, media_type(OutputFormat.WEBP), http)
    return _part_of(data, file.media_type, http)


def _preview_of(job: Job, variant: str | None, http: web.Request) -> web.Response:
    """What can be seen of a video that is not completed: perhaps a preview of its first frame."""
    preview = http.app[SERVICE].engine.preview_of(job.requests[0].id) if variant == "thumbnail" else None
    if preview is None:
        raise web.HTTPNotFound(text=f"video {job.id} is not completed yet; its status says how far it is")
    headers = {"Cache-Control": "no-store"}
    return web.Response(body=preview, content_type=media_type(OutputFormat.WEBP), headers=headers)


async def delete_video(http: web.Request) -> web.Response:
    """Forget a video, and stop drawing it first."""
    jobs, job = http.app[SERVICE].jobs, await find_video(http)
    await jobs.cancel(job.id)
    if not job.has_ended:
        await jobs.cancel(job.id)  # the first ended it
    return web.Response(body=msgspec.json.encode(DeletedVideo(id=job.id)), content_type=JSON)


async def find_video(http: web.Request) -> Job:
    """The video whose id stands in the path; raises `UnknownJob`, also for pictures that are kept."""
    job = await find_job(http)
    if not is_video(job):
        raise UnknownJob(f"job {job.id!r} is no video; GET /v1/requests/{job.id} has it", param="id")
    return job


def is_video(job: Job) -> bool:
    return job.requests[0].output_format.holds == "video"


def video_of(job: Job, http: web.Request) -> Video:
    """What clients read of a job."""
    service, request = http.app[SERVICE], job.requests[0]
    accepted = job.accepted[0]
    return Video(
        id=job.id,
        status=_status_of(job),
        progress=progress_of(job, service.jobs.num_steps_done(job)),
        created_at=int(job.accepted_at_s),
        completed_at=_ended_at(job) if job.state is JobState.FINISHED else None,
        expires_at=_expires_at(job, service.jobs),
        model=service.name,
        prompt=request.prompt,
        seconds=f"{request.num_frames / request.fps:g}",
        size=f"{request.width}x{request.height}",
        error=_error_of(job),
        epe=DrawnVideo(
            seed=request.seed,
            num_frames=request.num_frames,
            fps=request.fps,
            predicted_s=accepted.predicted_s,
            late=accepted.late,
            warnings=job.warnings,
            drawn=_drawn(job),
        ),
    )


def _answer(job: Job, http: web.Request) -> web.Response:
    headers = {POLL_HEADER: str(_poll_after_ms(job, http.app[SERVICE].jobs))}
    return web.Response(body=msgspec.json.encode(video_of(job, http)), content_type=JSON, headers=headers)


def _poll_after_ms(job: Job, jobs: Jobs) -> int:
    """A tenth of what was promised, or when it should end if that is sooner: few questions, and little lost."""
    predicted_s = job.accepted[0].predicted_s
    left_s = predicted_s - (jobs.clock() - job.accepted_at_s)
    wait_s = min(predicted_s / 10, left_s) if left_s > 0 else predicted_s / 20
    return round(min(_LATEST_MS, max(_SOONEST_MS, 1000 * wait_s)))


def _status_of(job: Job) -> Literal["queued", "in_progress", "completed", "failed"]:
    if job.has_ended:
        return "completed" if job.state is JobState.FINISHED else "failed"
    return "in_progress" if job.begun else "queued"


def _ended_at(job: Job) -> int | None:
    return None if job.ended_at_s is None else int(job.ended_at_s)


def _expires_at(job: Job, jobs: Jobs) -> int | None:
    return None if job.ended_at_s is None else int(job.ended_at_s + jobs.limits.max_age_s)


def _error_of(job: Job) -> VideoError | None:
    if job.error is None:
        return None
    detail = detail_of(error_from_wire(job.error))
    return VideoError(code=detail.code or detail.type, message=detail.message)


def _drawn(job: Job) -> DrawnAs | None:
    if job.state is not JobState.FINISHED:
        return None
    picture = Picture(job.requests[0], job.accepted[0], job.accounts[0], b"", job.files[0].media_type)
    return drawn_as(picture)


def _limit(http: web.Request) -> int:
    given = http.query.get("limit", "20")
    if not (given.isascii() and given.isdigit() and len(given) <= 3 and 1 <= int(given) <= MAX_LISTED):
        raise BadRequest(f"limit {given[:16]!r} is not allowed: 1 to {MAX_LISTED} are", param="limit")
    return int(given)


def _part_of(data: bytes, media_type: str, http: web.Request) -> web.Response:
    """The whole, or one range of bytes of it (RFC 9110, section 14)."""
    headers = {"Accept-Ranges": "bytes", "Cache-Control": "private, immutable"}
    try:
        wanted = http.http_range
    except ValueError:
        wanted = slice(None, None, 1)  # A range that cannot be read is as none.
    start, stop, _ = wanted.indices(len(data))
    if (wanted.start, wanted.stop) == (None, None):
        return web.Response(body=data, content_type=media_type, headers=headers)
    if start >= stop:
        raise web.HTTPRequestRangeNotSatisfiable(
            text=f"the file has {len(data)} bytes", headers={"Content-Range": f"bytes */{len(data)}"}
        )
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
    return web.Response(status=206, body=data[start:stop], content_type=media_type, headers=headers)
