"""`GET /v1/requests`: what is in work and what waits, without anybody's prompt or name."""

from __future__ import annotations

import time
from itertools import islice
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from epe.errors import BadRequest
from epe.messages import Admitted, Live, Stage
from epe.server.route import JSON
from epe.server.service import SERVICE

LIMIT = (1, 1000)
_USUAL_LIMIT = 100


class LiveRequest(Struct, frozen=True, kw_only=True):
    """A request that has not ended. Its finish was predicted at `created_at` (Unix time) to be `predicted_s` later;
    `stage`, `step` and `ranks` are those of its last report."""

    id: str
    status: Literal["queued", "in_progress"]
    created_at: float
    size: str
    num_inference_steps: int
    seed: int
    priority: int
    deadline_ms: float | None
    predicted_s: float
    predicted_from: str
    late: bool
    stage: Stage | None
    step: int
    ranks: tuple[int, ...]
    object: Literal["request"] = "request"


class LiveList(Struct, frozen=True, kw_only=True):
    """The first of them, in the order in which they came; `total` counts all."""

    data: tuple[LiveRequest, ...]
    total: int
    has_more: bool
    as_of: float
    object: Literal["list"] = "list"


async def list_requests(http: web.Request) -> web.Response:
    """The first `limit` requests."""
    limit = whole_number(http, "limit", bounds=LIMIT, default=_USUAL_LIMIT)
    engine = http.app[SERVICE].engine
    total = engine.num_requests
    reply = LiveList(
        data=tuple(live_request(each) for each in islice(engine.requests(), limit)),
        total=total,
        has_more=total > limit,
        as_of=time.time(),
    )
    return web.Response(body=msgspec.json.encode(reply), content_type=JSON)


def live_request(live: Live | Admitted) -> LiveRequest:
    """What the world may know of a request; of one that was just admitted there is no progress."""
    request, accepted = live.request, live.accepted
    progress = live.progress if isinstance(live, Live) else None
    return LiveRequest(
        id=request.id,
        status="queued" if progress is None else "in_progress",
        created_at=live.arrived_at,
        size=f"{request.width}x{request.height}",
        num_inference_steps=request.num_steps,
        seed=request.seed,
        priority=request.priority,
        deadline_ms=None if request.deadline_s is None else request.deadline_s * 1000,
        predicted_s=accepted.predicted_s,
        predicted_from=accepted.predicted_from,
        late=accepted.late,
        stage=None if progress is None else progress.stage,
        step=0 if progress is None else progress.step,
        ranks=() if progress is None else progress.ranks,
    )


def whole_number(http: web.Request, name: str, *, bounds: tuple[int, int], default: int) -> int:
    """A number in the address; raises `BadRequest` for one that is no whole number within its bounds."""
    given = http.query.getall(name, [])
    if not given:
        return default
    least, most = bounds
    text = given[-1]
    if len(given) > 1 or not (
        text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most
    ):
        raise BadRequest(f"{name} {text[:32]!r} is not one whole number from {least} to {most}", param=name)
    return int(text)
