"""`POST /v1/images/generations`: OpenAI's shape, and what EPE adds to it as optional fields."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from epe.config.limits import problem_with_seed
from epe.config.request import resolve_request
from epe.errors import BadRequest
from epe.messages import OutputFormat, Request
from epe.server.body import decode_body, read_body
from epe.server.keeping import draw_or_keep, new_id
from epe.server.reply import describe, send_pictures
from epe.server.service import SERVICE, Service

_NAMES = {"num_steps": "num_inference_steps", "deadline_s": "deadline_ms"}
_NAMES_OF_SIZE = _NAMES | {"height": "size", "width": "size"}
_WITHOUT_EFFECT = ("quality", "style", "background", "moderation", "user", "safety_identifier")


class ImageBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request for pictures. None is the same as not given; the model's bounds come later."""

    prompt: str | None = None
    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=10)] | None = None
    size: str | None = None
    response_format: Literal["b64_json", "url"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: int | None = None
    stream: bool | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None

    seed: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    negative_prompt: str | None = None
    height: int | None = None
    width: int | None = None
    max_sequence_length: int | None = None
    deadline_ms: Annotated[float, Meta(gt=0)] | None = None
    on_deadline: Literal["continue", "expire"] | None = None
    priority: int | None = None

    quality: str | None = None
    style: str | None = None
    background: str | None = None
    moderation: str | None = None
    user: str | None = None
    safety_identifier: str | None = None


async def create_images(http: web.Request) -> web.StreamResponse:
    """Draw, wait, answer with the files."""
    service = http.app[SERVICE]
    body = decode_body(await read_body(http), ImageBody)
    service.check_model(body.model)
    request_id = new_id(http)
    requests = to_requests(body, service, request_id=request_id)
    warnings = warnings_of(body, service)
    pictures = await draw_or_keep(http, requests, id=request_id, body=body, warnings=warnings)
    return await send_pictures(http, describe(pictures, warnings=warnings), pictures)


def to_requests(body: ImageBody, service: Service, *, request_id: str) -> tuple[Request, ...]:
    """One request for each of the `n` pictures; picture i has the seed plus i. Raises `BadRequest`."""
    if service.family.makes != "picture":
        raise BadRequest(f"model {service.name} draws videos; this route draws pictures", param="model")
    _refuse_not_yet(body)
    height, width = _sides(body)
    first = resolve_request(
        service.family,
        id=request_id,
        prompt=body.prompt,
        negative_prompt=body.negative_prompt,
        height=height,
        width=width,
        num_steps=body.num_inference_steps,
        guidance_scale=body.guidance_scale,
        seed=body.seed,
        max_sequence_length=body.max_sequence_length,
        priority=body.priority,
        deadline_s=None if body.deadline_ms is None else body.deadline_ms / 1000,
        on_deadline=body.on_deadline,
        output_format=None if body.output_format is None else OutputFormat(body.output_format),
        output_compression=body.output_compression,
        defaults=service.defaults,
        names=_NAMES if body.size is None else _NAMES_OF_SIZE,
    )
    return _series(first, num_pictures=body.n or 1)


def _series(first: Request, *, num_pictures: int) -> tuple[Request, ...]:
    if num_pictures == 1:
        return (first,)
    if problem := problem_with_seed(first.seed + num_pictures - 1):
        raise BadRequest(f"seed of picture {num_pictures}: {problem}", param="seed")
    return tuple(
        msgspec.structs.replace(first, id=f"{first.id}-{i}", seed=first.seed + i) for i in range(num_pictures)
    )


def _refuse_not_yet(body: ImageBody) -> None:
    if body.response_format == "url":
        raise BadRequest("response_format url: not yet; use b64_json", param="response_format")
    if body.stream:
        raise BadRequest("stream true: not yet; leave it out", param="stream")
    if body.partial_images:
        raise BadRequest("partial_images: not yet; leave it out", param="partial_images")


def _sides(body: ImageBody) -> tuple[int | None, int | None]:
    """Height and width; None is the default."""
    if body.size in (None, "auto"):
        return body.height, body.width
    if body.height is not None or body.width is not None:
        raise BadRequest("size is given beside height or width; give one of them", param="size")
    match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", body.size or "")
    if match is None:
        message = f"size {(body.size or '')[:32]!r} is neither auto nor WIDTHxHEIGHT, e.g. 1024x768"
        raise BadRequest(message, param="size")
    return int(match[2]), int(match[1])


def warnings_of(body: ImageBody, service: Service) -> tuple[str, ...]:
    """One sentence for each field that was given and has no effect here, and one on the prompt if need be."""
    given = (name for name in _WITHOUT_EFFECT if getattr(body, name) is not None)
    about_prompt = service.warn(body.prompt) if body.prompt else None
    return (*(f"{name} has no effect here" for name in given), *filter(None, [about_prompt]))
