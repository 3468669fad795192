"""`POST /v1/images/generations`, and a clear word where a family cannot do what OpenAI's other routes do."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from epe.errors import BadRequest
from epe.server.body import read_json
from epe.server.drawing import draw
from epe.server.image_body import ImageBody, resolved, to_requests, warnings_of
from epe.server.keeping import KEY_HEADER, key_of, new_id, order_of, pictures_of_job
from epe.server.reply import answer_pictures
from epe.server.service import CLIENT, SERVICE, TRACE_PARENT, Service
from epe.server.streaming import stream_picture


async def create_images(http: web.Request) -> web.StreamResponse:
    """Draw, wait, answer with the files."""
    service, client = http.app[SERVICE], http[CLIENT]
    body = await read_json(http, ImageBody)
    service.check_model(body.model)
    _check_stream(body)
    _check_url(body, service)
    request_id, warnings = new_id(http), warnings_of(body, service)
    resolve = partial(to_requests, body, service, request_id=request_id, key_name=client.name)
    requests = await resolved(body, service, resolve)
    key = key_of(http)
    if key is None:
        service.spans.follow(requests, http.get(TRACE_PARENT))
    if body.stream:
        _refuse_key(key)
        with service.clients.at_work(client, requests):
            num_previews = body.partial_images or 0
            return await stream_picture(http, requests[0], num_previews=num_previews, warnings=warnings)
    if key is not None:
        order = order_of(http, requests, key=key, body=body, warnings=warnings)
        pictures = await pictures_of_job(http, order)
    else:
        with service.clients.at_work(client, requests):
            pictures = await draw(service.engine, requests)
    return await answer_pictures(http, pictures, warnings=warnings, by_url=body.response_format == "url")


def _check_stream(body: ImageBody) -> None:
    """Events name no picture, so a stream has one; and they carry files."""
    if not body.stream:
        if body.partial_images:
            message = f"partial_images {body.partial_images} are sent in a stream alone; give stream true"
            raise BadRequest(message, param="partial_images")
    elif (body.n or 1) > 1:
        raise BadRequest(f"n {body.n} is not 1; a stream has one picture", param="n")
    elif body.response_format == "url":
        message = "response_format url is not for a stream, which has the file in it; use b64_json"
        raise BadRequest(message, param="response_format")


def _refuse_key(key: str | None) -> None:
    """A stream belongs to its connection; what is kept can be watched by its id."""
    if key is not None:
        message = f"{KEY_HEADER} is not for a stream, which is not kept; leave out one of them"
        raise BadRequest(message, param=KEY_HEADER)


def _check_url(body: ImageBody, service: Service) -> None:
    if body.response_format == "url" and service.results.limit_bytes == 0:
        message = "response_format url: this service keeps no results (service.results_mb is 0); use b64_json"
        raise BadRequest(message, param="response_format")


async def refuse_edits(http: web.Request) -> web.Response:
    """No family that is served here takes a picture; whatever is sent, the answer is the same."""
    service = http.app[SERVICE]
    message = f"model {service.name} draws from text alone; use POST /v1/images/generations without a picture"
    raise BadRequest(message, param="model")
