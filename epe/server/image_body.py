"""The body of a request for pictures: OpenAI's fields, and what EPE adds to them as optional ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from epe.config.limits import problem_with_seed
from epe.config.request import resolve_request
from epe.errors import BadRequest
from epe.families import Defaults
from epe.messages import OutputFormat, Request, Strategy
from epe.server.service import Service

_NAMES = {"num_steps": "num_inference_steps", "deadline_s": "deadline_ms"}
_NAMES_OF_SIZE = _NAMES | {"height": "size", "width": "size"}
Resolved = TypeVar("Resolved")

_WITHOUT_EFFECT = ("quality", "style", "background", "moderation", "safety_identifier")


class WorkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every request for work may say. None is the same as not given; the model's bounds come later."""

    prompt: str | None = None
    model: str | None = None
    size: str | None = None
    user: str | None = None

    seed: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    negative_prompt: str | None = None
    height: int | None = None
    width: int | None = None
    max_sequence_length: int | None = None
    deadline_ms: Annotated[float, Meta(ge=1e-3, le=1e12)] | None = None
    on_deadline: Literal["continue", "expire"] | None = None
    best_effort: bool | None = None
    priority: int | None = None
    client_id: Annotated[str, Meta(max_length=64)] | None = None
    cache: Strategy | None = None


class PlanBody(WorkBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What says how much work pictures are."""

    n: Annotated[int, Meta(ge=1, le=10)] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None


class ImageBody(PlanBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request for pictures."""

    response_format: Literal["b64_json", "url"] | None = None
    stream: bool | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None

    quality: str | None = None
    style: str | None = None
    background: str | None = None
    moderation: str | None = None
    safety_identifier: str | None = None


async def resolved(body: WorkBody, service: Service, resolve: Callable[[], Resolved]) -> Resolved:
    """What `resolve` makes of the body. A plan of FlexCache takes up to a second, in which the loop must not stop. One
    is made at a time: several at once would take turns with the loop, and who wants the same plan would not find it."""
    needs_plan = body.cache is not None or service.cache_rules.default is not None
    if not needs_plan:
        return resolve()
    return await asyncio.get_running_loop().run_in_executor(service.planning, resolve)


def to_requests(
    body: PlanBody, service: Service, *, request_id: str, key_name: str = ""
) -> tuple[Request, ...]:
    """One request for each of the `n` pictures; picture i has the seed plus i. Raises `BadRequest`.

    Where clients have keys, the name of the key says on whose account a request runs, and not the client.
    """
    if service.family.makes != "picture":
        raise BadRequest(f"model {service.name} draws videos; this route draws pictures", param="model")
    first = resolve_request(
        service.family,
        id=request_id,
        output_format=None if body.output_format is None else OutputFormat(body.output_format),
        output_compression=body.output_compression,
        **work_of(body, service, key_name=key_name),
    )
    return _series(first, num_pictures=body.n or 1)


def work_of(body: WorkBody, service: Service, *, key_name: str) -> dict[str, Any]:
    """What `resolve_request` makes of the fields that pictures and videos share."""
    height, width = _sides(body)
    return {
        "prompt": body.prompt,
        "negative_prompt": body.negative_prompt,
        "height": height,
        "width": width,
        "num_steps": body.num_inference_steps,
        "guidance_scale": body.guidance_scale,
        "seed": body.seed,
        "max_sequence_length": body.max_sequence_length,
        "priority": body.priority,
        "client_id": key_name or body.client_id or body.user or "",
        "deadline_s": None if body.deadline_ms is None else body.deadline_ms / 1000,
        "on_deadline": body.on_deadline,
        "cache": body.cache,
        "cache_rules": service.cache_rules,
        "defaults": _defaults(body, service.defaults),
        "names": _NAMES if body.size is None else _NAMES_OF_SIZE,
    }


def _defaults(body: WorkBody, defaults: Defaults) -> Defaults:
    """A request for the best effort has no deadline, the stage's included."""
    if not body.best_effort:
        return defaults
    if body.deadline_ms is not None:
        message = "best_effort true is given beside deadline_ms; best effort is to have no deadline: give one"
        raise BadRequest(message, param="best_effort")
    return msgspec.structs.replace(defaults, deadline_s=None)


def _series(first: Request, *, num_pictures: int) -> tuple[Request, ...]:
    if num_pictures == 1:
        return (first,)
    if problem := problem_with_seed(first.seed + num_pictures - 1):
        raise BadRequest(f"seed of picture {num_pictures}: {problem}", param="seed")
    return tuple(
        msgspec.structs.replace(first, id=f"{first.id}-{i}", seed=first.seed + i) for i in range(num_pictures)
    )


def _sides(body: WorkBody) -> tuple[int | None, int | None]:
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


def warnings_of(body: WorkBody, service: Service) -> tuple[str, ...]:
    """One sentence for each field that was given and has no effect here, one on the prompt if need be, and what every
    client is told."""
    without = [name for name in _WITHOUT_EFFECT if getattr(body, name, None) is not None]
    if service.clients.ask_for_keys:
        # Whoever could name the account could take another one's share.
        without += [name for name in ("user", "client_id") if getattr(body, name) is not None]
    elif body.user is not None and body.client_id is not None:
        without.append("user (beside client_id)")
    about_prompt = service.warn(body.prompt) if body.prompt else None
    no_effect = (f"{name} has no effect here" for name in without)
    return (*no_effect, *filter(None, [about_prompt]), *service.notes)
