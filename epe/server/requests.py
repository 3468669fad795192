"""`/v1/requests`: pictures that are drawn whether or not their client waits, and kept until they are forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from epe.errors import BadRequest, Cancelled
from epe.jobs.job import Job, JobState
from epe.jobs.jobs import Jobs
from epe.messages import Live
from epe.server.answers import ErrorDetail, detail_of
from epe.server.body import read_json
from epe.server.drawing import Picture
from epe.server.image_body import ImageBody, resolved, to_requests, warnings_of
from epe.server.keeping import find_job, is_of_job, key_of, new_id, order_of, raise_error_of, submit_job
from epe.server.reply import DrawnAs, drawn_as
from epe.server.service import CLIENT, SERVICE
from epe.transport.wire import error_from_wire

JobStatus = Literal["queued", "in_progress", "completed", "failed", "cancelled", "expired"]


class KeptPicture(Struct, frozen=True, kw_only=True):
    """One finished picture: where it is fetched, and what happened to its request."""

    seed: int
    content: str
    media_type: str
    num_bytes: int
    epe: DrawnAs


class JobReply(Struct, frozen=True, kw_only=True):
    """A job as it is now. Times are seconds of the Unix clock; `progress` is in percent and only grows while one
    service lives; `predicted_s` was promised at `created_at`."""

    id: str
    status: JobStatus
    created_at: int
    ended_at: int | None
    expires_at: int | None
    progress: int
    predicted_s: float
    late: bool
    data: tuple[KeptPicture, ...]
    error: ErrorDetail | None
    warnings: tuple[str, ...]
    forgotten: bool = False
    object: str = "request"


async def create_request(http: web.Request) -> web.Response:
    """Take the pictures as a job, and answer as soon as it is stored; the body is that of the images route."""
    service, client = http.app[SERVICE], http[CLIENT]
    body = await read_json(http, ImageBody)
    service.check_model(body.model)
    warnings = (*_without_effect(body), *warnings_of(body, service))
    resolve = partial(to_requests, body, service, request_id=new_id(http), key_name=client.name)
    requests = await resolved(body, service, resolve)
    job = await submit_job(http, order_of(http, requests, key=key_of(http), body=body, warnings=warnings))
    answer = _json(reply_of(job, service.jobs), status=200 if job.has_ended else 202)
    answer.headers["Location"] = f"/v1/requests/{job.id}"
    return answer


async def get_request(http: web.Request) -> web.Response:
    """The job as it is now, 200 whatever has become of it; or a request that is not kept, while it is in work."""
    if live := _find_live(http):
        return _json(_reply_of_live(live, status="queued" if live.progress is None else "in_progress"))
    return _json(reply_of(await find_job(http), http.app[SERVICE].jobs))


async def get_content(http: web.Request) -> web.Response:
    """The file of one picture of a finished job: the first, or the one at `index`."""
    job = await find_job(http)
    index = _index(http, job)
    if not job.has_ended:
        raise web.HTTPConflict(text=f"job {job.id} has not ended; its status says how far it is")
    raise_error_of(job)
    file = job.files[index]
    return web.Response(body=await http.app[SERVICE].jobs.read(job, file), content_type=file.media_type)


async def delete_request(http: web.Request) -> web.Response:
    """End a request that has not ended, and answer when it has; forget a job that has ended, with its pictures."""
    if live := _find_live(http):
        await http.app[SERVICE].engine.end(live.request.id)
        ended = _reply_of_live(live, status="cancelled")
        error = detail_of(Cancelled("the request was cancelled"))
        return _json(msgspec.structs.replace(ended, ended_at=int(time.time()), error=error, forgotten=True))
    jobs, before = http.app[SERVICE].jobs, await find_job(http)
    job = await jobs.cancel(before.id)
    return _json(msgspec.structs.replace(reply_of(job, jobs), forgotten=before.has_ended))


def _find_live(http: web.Request) -> Live | None:
    """The request of that id, if its client waits for it and it is no part of a job: those end together."""
    service, request_id = http.app[SERVICE], http.match_info["id"]
    live = None if is_of_job(request_id) else service.engine.find(request_id)
    if live is None or (service.clients.ask_for_keys and live.request.client_id != http[CLIENT].name):
        return None
    return live


def _reply_of_live(live: Live, *, status: JobStatus) -> JobReply:
    """What is told of a request that nobody keeps; its own client gets its pictures, or its error."""
    step = 0 if live.progress is None else live.progress.step
    return JobReply(
        id=live.request.id,
        status=status,
        created_at=int(live.arrived_at),
        ended_at=None,
        expires_at=None,
        progress=min(99, 100 * step // live.request.num_steps),
        predicted_s=live.accepted.predicted_s,
        late=live.accepted.late,
        data=(),
        error=None,
        warnings=(),
    )


def _without_effect(body: ImageBody) -> Iterator[str]:
    for name in ("response_format", "stream", "partial_images"):
        if getattr(body, name) is not None:
            yield f"{name} has no effect here"


def reply_of(job: Job, jobs: Jobs) -> JobReply:
    """What clients read of a job."""
    return JobReply(
        id=job.id,
        status=_status_of(job),
        created_at=int(job.accepted_at_s),
        ended_at=None if job.ended_at_s is None else int(job.ended_at_s),
        expires_at=None if job.ended_at_s is None else int(job.ended_at_s + jobs.limits.max_age_s),
        progress=progress_of(job, jobs.num_steps_done(job)),
        predicted_s=max(accepted.predicted_s for accepted in job.accepted),
        late=any(accepted.late for accepted in job.accepted),
        data=tuple(_kept(job, index) for index in range(len(job.files))),
        error=None if job.error is None else detail_of(error_from_wire(job.error)),
        warnings=job.warnings,
    )


def _status_of(job: Job) -> JobStatus:
    match job.state:
        case JobState.OPEN:
            return "in_progress" if job.begun else "queued"
        case JobState.FINISHED:
            return "completed"
        case JobState.CANCELLED:
            return "cancelled"
        case JobState.EXPIRED:
            return "expired"
        case _:
            return "failed"


def progress_of(job: Job, num_steps_done: int) -> int:
    """Of the steps; the last percent is the finished file."""
    return 100 if job.state is JobState.FINISHED else min(99, 100 * num_steps_done // job.num_steps)


def _kept(job: Job, index: int) -> KeptPicture:
    request, file = job.requests[index], job.files[index]
    picture = Picture(request, job.accepted[index], job.accounts[index], b"", file.media_type)
    return KeptPicture(
        seed=request.seed,
        content=f"/v1/requests/{job.id}/content?index={index}",
        media_type=file.media_type,
        num_bytes=file.num_bytes,
        epe=drawn_as(picture),
    )


def _index(http: web.Request, job: Job) -> int:
    given, most = http.query.get("index", "0"), len(job.requests) - 1
    if not (given.isascii() and given.isdigit() and len(given) <= 3 and int(given) <= most):
        raise BadRequest(
            f"index {given[:16]!r} is not allowed: the job has pictures 0 to {most}", param="index"
        )
    return int(given)


def _json(body: Struct, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
