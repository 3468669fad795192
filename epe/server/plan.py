"""`POST /v1/plan`: what a request would cost and when it would end, without running it."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import msgspec
from aiohttp import web
from msgspec import Struct

from epe.messages import WidthCost
from epe.server.body import read_json
from epe.server.clients import check_work
from epe.server.image_body import PlanBody, resolved, to_requests
from epe.server.route import JSON
from epe.server.service import CLIENT, REQUEST_ID, SERVICE


class PlannedPicture(Struct, frozen=True, kw_only=True):
    """One picture: its finish as it would be promised, in seconds from now."""

    seed: int
    predicted_s: float
    predicted_from: str
    late: bool


class PlanReply(Struct, frozen=True, kw_only=True):
    """`predicted_s` is the finish of all pictures. Each of them takes `encode_s`, one of `widths`, `decode_s` and
    `finish_s` of work."""

    size: str
    num_inference_steps: int
    guidance_scale: float
    predicted_s: float
    late: bool
    data: tuple[PlannedPicture, ...]
    encode_s: float
    decode_s: float
    finish_s: float
    widths: tuple[WidthCost, ...]


async def plan_images(http: web.Request) -> web.Response:
    """Refused as the pictures would be; nothing is drawn."""
    service, client = http.app[SERVICE], http[CLIENT]
    body = await read_json(http, PlanBody)
    service.check_model(body.model)
    request_id = f"{http[REQUEST_ID]}-{uuid4().hex[:8]}"
    resolve = partial(to_requests, body, service, request_id=request_id, key_name=client.name)
    requests = await resolved(body, service, resolve)
    check_work(requests, client.limits)
    predicted = await service.engine.predict(requests)
    first = requests[0]
    pictures = tuple(
        PlannedPicture(
            seed=request.seed,
            predicted_s=accepted.predicted_s,
            predicted_from=accepted.predicted_from,
            late=accepted.late,
        )
        for request, accepted in zip(requests, predicted.accepted, strict=True)
    )
    reply = PlanReply(
        size=f"{first.width}x{first.height}",
        num_inference_steps=first.num_steps,
        guidance_scale=first.guidance_scale,
        predicted_s=max(each.predicted_s for each in pictures),
        late=any(each.late for each in pictures),
        data=pictures,
        encode_s=predicted.encode_s,
        decode_s=predicted.decode_s,
        finish_s=predicted.finish_s,
        widths=predicted.widths,
    )
    return web.Response(body=msgspec.json.encode(reply), content_type=JSON)
