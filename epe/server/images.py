"""`POST /v1/images/generations`, and a clear word where a family cannot do what OpenAI's other routes do."""

from __future__ import annotations

from uuid import uuid4

from aiohttp import web

from epe.errors import BadRequest
from epe.server.body import read_json
from epe.server.drawing import draw
from epe.server.image_body import ImageBody, to_requests, warnings_of
from epe.server.reply import answer_pictures
from epe.server.service import CLIENT, REQUEST_ID, SERVICE, Service
from epe.server.streaming import stream_picture


async def create_images(http: web.Request) -> web.StreamResponse:
    """Draw, wait, answer with the files."""
    service, client = http.app[SERVICE], http[CLIENT]
    body = await read_json(http, ImageBody)
    service.check_model(body.model)
    _check_stream(body)
    _check_url(body, service)
    # Clients and proxies send an id twice; what works on a request must never meet another of its name.
    request_id = f"{http[REQUEST_ID]}-{uuid4().hex[:8]}"
    requests = to_requests(body, service, request_id=request_id, key_name=client.name)
    warnings = warnings_of(body, service)
    with service.clients.at_work(client, requests):
        if body.stream:
            num_previews = body.partial_images or 0
            return await stream_picture(http, requests[0], num_previews=num_previews, warnings=warnings)
        pictures = await draw(service.engine, requests)
    by_url = body.response_format == "url"
    return await answer_pictures(http, pictures, warnings=warnings, by_url=by_url)


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


def _check_url(body: ImageBody, service: Service) -> None:
    if body.response_format == "url" and service.results.limit_bytes == 0:
        message = "response_format url: this service keeps no results (service.results_mb is 0); use b64_json"
        raise BadRequest(message, param="response_format")


async def refuse_edits(http: web.Request) -> web.Response:
    """No family that is served here takes a picture; whatever is sent, the answer is the same."""
    service = http.app[SERVICE]
    message = f"model {service.name} draws from text alone; use POST /v1/images/generations without a picture"
    raise BadRequest(message, param="model")
