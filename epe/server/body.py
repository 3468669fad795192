"""Bodies, strictly: no unknown fields, no duplicate fields, in JSON no coercion; each error names its field."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable
from difflib import get_close_matches
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from aiohttp import web

from epe.errors import BadRequest

# A client that begins a body and does not end it would hold its connection for ever.
BODY_WITHIN_S = 30.0
# To take apart more than this would stop the loop.
_LARGE_BYTES = 2**16
# Some clients can only add fields in one of these; others send that as a text.
EXTRA_FIELDS = ("extra_args", "extra_body")

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")

Body = TypeVar("Body", bound=msgspec.Struct)
Read = TypeVar("Read")


async def read_json(http: web.Request, body_type: type[Body]) -> Body:
    """The body as `body_type`; raises `BadRequest`, or the `HTTPException` that says why there is none.

    What stands in a field `extra_args` or `extra_body` counts as if it stood beside it.
    """
    raw = await read_body(http)
    if len(raw) > _LARGE_BYTES:
        return await asyncio.to_thread(decode_body, raw, body_type)
    return decode_body(raw, body_type)


async def read_fields(http: web.Request, body_type: type[Body]) -> Body:
    """As `read_json`, also from a form, whose values are texts; a file in it is refused."""
    if http.content_type not in FORMS:
        return await read_json(http, body_type)
    _refuse_encoding(http)
    form = await _in_time(http.post())
    fields: dict[str, object] = {}
    for name, value in form.items():
        if not isinstance(value, str):
            raise BadRequest(
                f"{name[:64]}: a file is not read here; this model takes a prompt alone", param=name[:64]
            )
        if name in fields:
            raise BadRequest(f"field {name[:64]} is given more than once", param=name[:64])
        fields[name] = value
    return _from_texts(fields, body_type)


def _from_texts(fields: dict[str, object], body_type: type[Body]) -> Body:
    for name in EXTRA_FIELDS:
        more = _raw_fields(str(fields.pop(name, "{}")).encode(), param=name)
        if both := fields.keys() & more.keys():
            raise BadRequest(f"field {min(both)} is given beside {name} and in it; give one", param=min(both))
        fields |= {key: msgspec.json.decode(value) for key, value in more.items()}
    try:
        return msgspec.convert(fields, body_type, strict=False)
    except msgspec.ValidationError as error:
        raise _explain(str(error), {name: str(value) for name, value in fields.items()}, body_type) from None


async def read_body(http: web.Request) -> bytes:
    """The bytes of a JSON body, as they were sent; raises the `HTTPException` that says why there are none."""
    _refuse_encoding(http)
    # Without a type the bytes may be what they should be.
    if http.headers.get("Content-Type") and http.content_type != "application/json":
        text = f"content-type {_shown(http.content_type)} is not read here; send application/json"
        raise web.HTTPUnsupportedMediaType(text=text)
    return await _in_time(http.read())


def _refuse_encoding(http: web.Request) -> None:
    encoding = http.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        text = f"content-encoding {_shown(encoding)} is not read here; send the body as it is"
        raise web.HTTPUnsupportedMediaType(text=text)


async def _in_time(reading: Awaitable[Read]) -> Read:
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            return await reading
    except TimeoutError:
        text = f"the body has not come within {BODY_WITHIN_S:g} s"
        raise web.HTTPRequestTimeout(text=text) from None
    except (web.RequestPayloadError, ValueError) as error:  # a form in no form is a ValueError
        raise web.HTTPBadRequest(text=f"the body cannot be read: {_shown(str(error))}") from None


def decode_body(raw: bytes, body_type: type[Body]) -> Body:
    """The body as `body_type`, a struct that forbids unknown fields; raises `BadRequest`."""
    raw = _with_extra(raw)
    try:
        body = msgspec.json.decode(raw, type=body_type)
    except msgspec.ValidationError as error:
        raise _explain(str(error), _fields(raw), body_type) from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    _refuse_duplicates(raw)
    return body


def _with_extra(raw: bytes) -> bytes:
    """The body with the fields of its `extra_args` and `extra_body` at the top."""
    if not any(f'"{name}"'.encode() in raw for name in EXTRA_FIELDS):
        return raw
    _refuse_duplicates(raw)
    fields = _raw_fields(raw)
    for name in EXTRA_FIELDS:
        more = _raw_fields(_unquoted(fields.pop(name, msgspec.Raw(b"null"))), param=name)
        if both := fields.keys() & more.keys():
            raise BadRequest(f"field {min(both)} is given beside {name} and in it; give one", param=min(both))
        fields |= more
    return msgspec.json.encode(fields)


def _unquoted(value: msgspec.Raw) -> bytes:
    """The JSON of an object, whether it was sent as such or as a text."""
    raw = bytes(value)
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str).encode()
    return b"{}" if raw == b"null" else raw


def _refuse_duplicates(raw: bytes) -> None:
    """msgspec keeps the last of two equal keys, and nobody could tell which one was meant."""
    pairs = json.loads(raw, object_pairs_hook=list, parse_int=str)
    for name, times in Counter(key for key, _ in pairs).most_common(1):
        if times > 1:
            raise BadRequest(f"field {name} is given {times} times; once is allowed", param=name)


def _fields(raw: bytes) -> dict[str, str]:
    """The JSON text of each field, for the sentence that says what is wrong with it."""
    return {name: bytes(text).decode(errors="replace") for name, text in _raw_fields(raw).items()}


def _raw_fields(raw: bytes, *, param: str | None = None) -> dict[str, msgspec.Raw]:
    what = "the body" if param is None else param
    try:
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise BadRequest(f"{what} is not a JSON object", param=param) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"{what} is not valid JSON: {error}", param=param) from None


def _explain(text: str, given: dict[str, str], body_type: type[msgspec.Struct]) -> BadRequest:
    """msgspec's sentence with the field in front, what was given, and what is allowed."""
    if inside := re.fullmatch(r"(.*) - at `\$\.(\w+)((?:\.\w+(?:\[\d+\])*)*)`", text, re.DOTALL):
        what, param, place = inside[1], inside[2], inside[3]
        if place or what.startswith("Object "):
            return _explain_inside(
                what, param + place, structs=_structs_at(body_type, param), given=given[param]
            )
    if unknown := re.search(r"unknown field `(.*)`", text, re.DOTALL):
        return _unknown(unknown[1], body_type)
    if missing := re.search(r"missing required field `(\w+)`", text):
        return BadRequest(f"{missing[1]} is missing", param=missing[1])
    if located := re.fullmatch(r"(.*) - at `\$\.(\w+).*`", text, re.DOTALL):
        expected, param = located[1].replace(" | null", "").replace("`", ""), located[2]
        choices = _choices(body_type, param)
        allowed = f"allowed are {', '.join(choices)}" if choices else expected[:1].lower() + expected[1:]
        return BadRequest(f"{param} {_shown(given[param])} is not allowed: {allowed}", param=param)
    return BadRequest(text)


def _explain_inside(
    what: str, place: str, *, structs: tuple[type[msgspec.Struct], ...], given: str
) -> BadRequest:
    """What is wrong within a field that is an object, such as `cache`, and may be one of `structs`."""
    param = place.partition(".")[0]
    choices = tuple(str(each.__struct_config__.tag) for each in structs)
    if unknown := re.search(r"unknown field `(.*)`", what, re.DOTALL):
        known = _names_of_given(structs, given) if place == param else ()
        hint = f"; known are {', '.join(known)}" if known else ""
        return BadRequest(f"{place}: field {_shown(unknown[1])} is not known there{hint}", param=param)
    if missing := re.search(r"missing required field `(\w+)`", what):
        return BadRequest(f"{place}.{missing[1]} is missing; {_one_of(choices)}", param=param)
    if what.startswith("Invalid value"):
        return BadRequest(f"{place}: {what[:1].lower()}{what[1:]}; {_one_of(choices)}", param=param)
    return BadRequest(f"{place} is not allowed: {what[:1].lower()}{what[1:]}".replace("`", ""), param=param)


def _one_of(choices: tuple[str, ...]) -> str:
    return f"allowed are {', '.join(choices)}"


def _structs_at(body_type: type[msgspec.Struct], param: str) -> tuple[type[msgspec.Struct], ...]:
    """What a field may be, where it is an object."""
    alternatives = get_args(get_type_hints(body_type)[param])
    return tuple(each for each in alternatives if isinstance(each, type) and issubclass(each, msgspec.Struct))


def _names_of_given(structs: tuple[type[msgspec.Struct], ...], given: str) -> tuple[str, ...]:
    """The fields of the one of `structs` that the tag in `given`, an object's JSON, names."""
    fields = msgspec.json.decode(given)
    return tuple(
        name
        for each in structs
        if fields.get(each.__struct_config__.tag_field) == each.__struct_config__.tag
        for name in each.__struct_fields__
    )


def _unknown(name: str, body_type: type[msgspec.Struct]) -> BadRequest:
    known = body_type.__struct_fields__
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
    return BadRequest(f"field {_shown(name)} is not known; {hint}", param=name[:64])


def _choices(body_type: type[msgspec.Struct], param: str) -> tuple[str, ...]:
    """The values of a field that is a `Literal` (or None)."""
    alternatives = get_args(get_type_hints(body_type)[param])
    return tuple(value for each in alternatives if get_origin(each) is Literal for value in get_args(each))


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
