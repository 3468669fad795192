"""Requests that are kept as jobs: their ids, their keys, and their pictures once they have ended."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import ExitStack
from uuid import uuid4

import msgspec
from aiohttp import web

from epe.errors import BadRequest, UnknownJob
from epe.jobs.job import Job
from epe.jobs.jobs import Jobs
from epe.jobs.open_job import Order
from epe.messages import Request
from epe.server.drawing import Picture
from epe.server.service import CLIENT, REQUEST_ID, SERVICE, TRACE_PARENT
from epe.transport.wire import error_from_wire

KEY_HEADER = "Idempotency-Key"
_JOB = "job-"
_OF_JOB = re.compile(_JOB + r"[0-9a-f]{32}(-\d+)?")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def new_id(http: web.Request) -> str:
    """Clients and proxies send an id twice; what works on a request must never meet another of its name."""
    return f"{http[REQUEST_ID]}-{uuid4().hex[:8]}"


def new_job_id() -> str:
    """Nobody can guess it, but it is no secret: `GET /v1/requests` shows it, and a key says whose a job is."""
    return f"{_JOB}{uuid4().hex}"


def is_of_job(request_id: str) -> bool:
    """Whether a request is one of a job, by its name."""
    return _OF_JOB.fullmatch(request_id) is not None


def key_of(http: web.Request) -> str | None:
    """The client's idempotency key; raises `BadRequest` for one that is no key."""
    key = http.headers.get(KEY_HEADER)
    if key is not None and not _KEY.fullmatch(key):
        raise BadRequest(
            f"{KEY_HEADER} has {len(key)} characters; allowed are 1 to 255 of printable ASCII without spaces",
            param=KEY_HEADER,
        )
    return key


def order_of(
    http: web.Request,
    requests: tuple[Request, ...],
    *,
    key: str | None,
    body: msgspec.Struct,
    warnings: tuple[str, ...],
) -> Order:
    """What the client hands in. The digest is that of the fields, in whatever order they came, and of the route."""
    job_id = new_job_id()
    return Order(
        id=job_id,
        requests=_renamed(requests, job_id),
        client_id=requests[0].client_id,
        key=key,
        digest=hashlib.sha256(http.path.encode() + msgspec.json.encode(body, order="sorted")).hexdigest(),
        warnings=warnings,
    )


def _renamed(requests: tuple[Request, ...], job_id: str) -> tuple[Request, ...]:
    """The files of a job are called after its requests."""
    names = [job_id] if len(requests) == 1 else [f"{job_id}-{index}" for index in range(len(requests))]
    return tuple(
        msgspec.structs.replace(request, id=name) for request, name in zip(requests, names, strict=True)
    )


async def submit_job(http: web.Request, order: Order) -> Job:
    """Take a job, which counts as its client's work until it ends."""
    service = http.app[SERVICE]
    service.spans.follow(order.requests, http.get(TRACE_PARENT))
    with ExitStack() as counted:
        counted.enter_context(service.clients.at_work(http[CLIENT], order.requests))
        job = await service.jobs.submit(order)
        if job.id == order.id:  # else it is one that came before, which is counted
            service.jobs.when_ended(job.id, counted.pop_all().close)
    return job


async def pictures_of_job(http: web.Request, order: Order) -> Sequence[Picture]:
    """The pictures of a job that goes on if its client leaves."""
    jobs = http.app[SERVICE].jobs
    job = await submit_job(http, order)
    return await pictures_of(jobs, await jobs.ended(job.id))


async def find_job(http: web.Request) -> Job:
    """The job whose id stands in the path; raises `UnknownJob`, also for another client's."""
    service = http.app[SERVICE]
    job = await service.jobs.get(http.match_info["id"])
    if service.clients.ask_for_keys and job.client_id != http[CLIENT].name:
        raise UnknownJob(f"there is no job {job.id!r} of yours", param="id")
    return job


async def pictures_of(jobs: Jobs, job: Job) -> tuple[Picture, ...]:
    """The pictures of a job that has ended; raises the error that ended it."""
    raise_error_of(job)
    files = [await jobs.read(job, file) for file in job.files]
    media_types = [file.media_type for file in job.files]
    return tuple(map(Picture, job.requests, job.accepted, job.accounts, files, media_types))


def raise_error_of(job: Job) -> None:
    """Raise the error that ended a job, if one did."""
    if job.error is not None:
        raise error_from_wire(job.error)
