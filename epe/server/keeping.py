"""Requests that are kept as jobs: their ids, their keys, and their pictures once they have ended."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from uuid import uuid4

import msgspec
from aiohttp import web

from epe.errors import BadRequest
from epe.jobs.job import Job
from epe.jobs.jobs import Jobs
from epe.jobs.open_job import Order
from epe.messages import Request
from epe.server.drawing import Picture, draw
from epe.server.service import REQUEST_ID, SERVICE
from epe.transport.wire import error_from_wire

KEY_HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def new_id(http: web.Request, *, kept: bool | None = None) -> str:
    """What works on a request must never meet another of its name, and clients and proxies send an id twice. Who knows
    the id of a kept one may fetch it, so that cannot be guessed."""
    if kept or (kept is None and key_of(http) is not None):
        return f"job-{uuid4().hex}"
    return f"{http[REQUEST_ID]}-{uuid4().hex[:8]}"


def key_of(http: web.Request) -> str | None:
    """The client's key; raises `BadRequest` for one that is no key."""
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
    id: str,
    body: msgspec.Struct,
    warnings: tuple[str, ...],
) -> Order:
    """What the client hands in; the digest is that of the fields, in whatever order they came."""
    digest = hashlib.sha256(http.path.encode() + msgspec.json.encode(body, order="sorted")).hexdigest()
    return Order(
        id=id,
        requests=requests,
        client_id=requests[0].client_id,
        key=key_of(http),
        digest=digest,
        warnings=warnings,
    )


async def draw_or_keep(
    http: web.Request,
    requests: tuple[Request, ...],
    *,
    id: str,
    body: msgspec.Struct,
    warnings: tuple[str, ...],
) -> Sequence[Picture]:
    """Draw the requests for this connection alone, or, with a key, as a job that outlives it."""
    service = http.app[SERVICE]
    if key_of(http) is None:
        return await draw(service.engine, requests)
    job = await service.jobs.submit(order_of(http, requests, id=id, body=body, warnings=warnings))
    return await pictures_of(service.jobs, await service.jobs.ended(job.id))


async def pictures_of(jobs: Jobs, job: Job) -> tuple[Picture, ...]:
    """The pictures of a job that has ended; raises the error that ended it."""
    raise_error_of(job)
    files = [await jobs.read(job, file) for file in job.files]
    return tuple(map(Picture, job.requests, job.accepted, job.accounts, files))


def raise_error_of(job: Job) -> None:
    """Raise the error that ended a job, if one did."""
    if job.error is not None:
        raise error_from_wire(job.error)
