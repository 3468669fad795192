"""The document of the service, OpenAPI 3.1, made from the table of routes and the structs that they read and answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from epe.config.limits import MAX_GUIDANCE, MAX_PRIORITY, MAX_SEED
from epe.server.answers import ErrorBody
from epe.server.body import FORMS
from epe.server.route import JSON, Answer, Route
from epe.server.service import Service

Schema = dict[str, Any]

DOCUMENT = web.AppKey("document", bytes)
_REF = "#/components/schemas/{name}"
_ERRORS = {
    400: "a field is not allowed; `param` names it",
    401: "no key of the service was sent",
    404: "there is no such model or thing here",
    408: "the body has not come in time",
    409: "it has not ended yet",
    410: "its client has ended it",
    413: "the body is too large",
    416: "the file has no such bytes",
    415: "the body is compressed, or no JSON",
    429: "overload, or a limit of this client; `Retry-After` says when it may be tried again",
    500: "the work failed; `x-should-retry` is false",
    503: "requests are not taken in this phase",
    504: "the deadline has passed",
}


class Document(Struct, frozen=True, kw_only=True):
    """An OpenAPI document, by its first level."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


async def get_document(http: web.Request) -> web.Response:
    return web.Response(body=http.app[DOCUMENT], content_type=JSON)


def describe_routes(routes: Sequence[Route], service: Service) -> Document:
    """The document of these routes, with the bounds of the model that is served."""
    bodies = {each.body for each in routes if each.body}
    answered = {answer.body for each in routes for answer in each.answers.values() if answer.body}
    _, schemas = msgspec.json.schema_components(
        sorted(bodies | answered | {ErrorBody}, key=lambda struct: struct.__name__), ref_template=_REF
    )
    for body in bodies:
        _bound(schemas[body.__name__], service)
    components: dict[str, Any] = {"schemas": schemas}
    if service.clients.ask_for_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, service)
    return Document(
        openapi="3.1.0",
        info={"title": f"EPE: {service.name}", "version": _version()},
        paths=paths,
        components=components,
    )


def _operation(route: Route, service: Service) -> Schema:
    guarded = route.guarded and service.clients.ask_for_keys
    errors = (*route.errors, *([401] if guarded else []))
    answers = {status: _answer(answer) for status, answer in route.answers.items()}
    answers |= {
        status: _answer(Answer(_ERRORS[status], ErrorBody)) for status in errors if status not in answers
    }
    operation: Schema = {
        "summary": route.summary,
        "operationId": _name_of(route),
        "responses": {str(status): answers[status] for status in sorted(answers)},
    }
    if parameters := [*_path_parameters(route.path), *_query_parameters(route.query)]:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {kind: {"schema": _ref(route.body)} for kind in (JSON, *(FORMS if route.forms else ()))}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.any_body:
        operation["requestBody"] = {"content": {"multipart/form-data": {"schema": {"type": "object"}}}}
    if guarded:
        operation["security"] = [{"key": []}]
    return operation


def _answer(answer: Answer) -> Schema:
    content: Schema = {} if answer.body is None else {JSON: {"schema": _ref(answer.body)}}
    content |= {media_type: {} for media_type in answer.others}
    return {"description": answer.what, "content": content}


def _ref(struct: type[Struct]) -> Schema:
    return {"$ref": _REF.format(name=struct.__name__)}


def _path_parameters(path: str) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _query_parameters(query: Mapping[str, tuple[int, int]]) -> list[Schema]:
    return [
        {"name": name, "in": "query", "schema": {"type": "integer", "minimum": least, "maximum": most}}
        for name, (least, most) in query.items()
    ]


def _name_of(route: Route) -> str:
    words = re.findall(r"\w+", route.path.removeprefix("/v1"))
    return "_".join([route.method.lower(), *words])


def _bound(schema: Schema, service: Service) -> None:
    """Write the bounds of the model into the schema of a body, where the struct cannot know them."""
    properties, family = schema["properties"], service.family
    side = {"minimum": family.min_side, "maximum": family.max_side, "multipleOf": family.side_multiple}
    bounds: dict[str, Schema] = {
        "prompt": {"type": "string", "maxLength": service.clients.limits.prompt_chars},
        "size": {"pattern": "^(auto|[1-9][0-9]{1,3}x[1-9][0-9]{1,3})$"},
        "height": side,
        "width": side,
        "seed": {"minimum": 0, "maximum": MAX_SEED},
        "num_inference_steps": {"minimum": family.min_steps, "maximum": family.max_steps},
        "guidance_scale": {"minimum": 0, "maximum": MAX_GUIDANCE},
        "max_sequence_length": {"minimum": 1, "maximum": family.max_text_tokens},
        "priority": {"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
    }
    for name, bound in bounds.items():
        if name == "prompt":
            properties[name] = bound
        elif name in properties:
            _narrow(properties[name], bound)
    schema["required"] = ["prompt"]


def _narrow(schema: Schema, bound: Schema) -> None:
    """Put a bound on the alternative that is not null."""
    for alternative in schema["anyOf"]:
        if alternative.get("type") != "null":
            alternative |= bound


def _version() -> str:
    try:
        return version("epe")
    except PackageNotFoundError:  # a source tree on the path
        return "0"
