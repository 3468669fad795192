"""`POST /v1/images/generations`, and a clear word where a family cannot do what OpenAI's other routes do."""

from __future__ import annotations

from aiohttp import web

from epe.errors import BadRequest
from epe.server.body import read_json
from epe.server.drawing import draw
from epe.server.image_body import ImageBody, to_requests, warnings_of
from epe.server.keeping import key_of, new_id, order_of, pictures_of_job
from epe.server.reply import answer_pictures
from epe.server.service import CLIENT, SERVICE, Service


async def create_images(http: web.Request) -> web.StreamResponse:
    """Draw, wait, answer with the files."""
    service, client = http.app[SERVICE], http[CLIENT]
    body = await read_json(http, ImageBody)
    service.check_model(body.model)
    _refuse_not_yet(body)
    _check_url(body, service)
    request_id, warnings = new_id(http), warnings_of(body, service)
    requests = to_requests(body, service, request_id=request_id, key_name=client.name)
    if (key := key_of(http)) is not None:
        pictures = await pictures_of_job(
            http, order_of(http, requests, key=key, body=body, warnings=warnings)
        )
    else:
        with service.clients.at_work(client, requests):
            pictures = await draw(service.engine, requests)
    return await answer_pictures(http, pictures, warnings=warnings, by_url=body.response_format == "url")


def _refuse_not_yet(body: ImageBody) -> None:
    if body.stream:
        raise BadRequest("stream true: not yet; leave it out", param="stream")
    if body.partial_images:
        raise BadRequest("partial_images: not yet; leave it out", param="partial_images")


def _check_url(body: ImageBody, service: Service) -> None:
    if body.response_format == "url" and service.results.limit_bytes == 0:
        message = "response_format url: this service keeps no results (service.results_mb is 0); use b64_json"
        raise BadRequest(message, param="response_format")


async def refuse_edits(http: web.Request) -> web.Response:
    """No family that is served here takes a picture; whatever is sent, the answer is the same."""
    service = http.app[SERVICE]
    message = f"model {service.name} draws from text alone; use POST /v1/images/generations without a picture"
    raise BadRequest(message, param="model")
