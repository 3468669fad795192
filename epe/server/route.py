"""A route as data: what serves it, and all that its callers must know. The document of the service is made of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from aiohttp.typedefs import Handler
from msgspec import Struct

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """One kind of answer: in words, the type of a JSON body, and the media types of another one."""

    what: str
    body: type[Struct] | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """`errors` are the statuses that are answered in the shape of an error; `query` are the whole numbers that may be
    given in the address, each with its least and its greatest value. The body is JSON, with `forms` also a form.
    Without `guarded` no key is asked for."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: Handler
    summary: str
    answers: Mapping[int, Answer]
    errors: tuple[int, ...] = ()
    body: type[Struct] | None = None
    any_body: bool = False
    forms: bool = False
    query: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    guarded: bool = True
