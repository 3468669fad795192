"""Who sends requests, and what each may ask for at once."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web
from msgspec.structs import replace

from epe.config.api_keys import ApiKey
from epe.config.stage import RequestLimits
from epe.errors import BadRequest, Refused
from epe.messages import Request

_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Client:
    """The holder of a key, or everybody where none is asked for (then without a name)."""

    name: str
    limits: RequestLimits


class Clients:
    """One for each service; counts what each client has in work."""

    def __init__(self, keys: Mapping[str, ApiKey], *, limits: RequestLimits) -> None:
        self.limits = limits
        self._anybody = Client("", limits)
        self._known = [(key.digest, Client(name, _own_limits(key, limits))) for name, key in keys.items()]
        self._num_at_work: Counter[str] = Counter()

    @property
    def ask_for_keys(self) -> bool:
        return bool(self._known)

    def recognise(self, authorization: str) -> Client:
        """The client that a header `Authorization` names; raises `HTTPUnauthorized`."""
        if not self._known:
            return self._anybody
        scheme, _, key = authorization.partition(" ")
        found = self._holder(key.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            what = "this key is not known" if authorization else "a key is missing"
            text = f"{what}; send the header Authorization: Bearer KEY with a key of this service"
            raise web.HTTPUnauthorized(text=text, headers={"WWW-Authenticate": "Bearer"})
        return found

    def _holder(self, key: str) -> Client | None:
        """Takes equally long for every key: each digest is compared, and each as a whole."""
        digest, found = hashlib.sha256(key.encode(errors="surrogateescape")).digest(), None
        for known, client in self._known:
            if hmac.compare_digest(known, digest):
                found = client
        return found

    @contextmanager
    def at_work(self, client: Client, requests: Sequence[Request]) -> Iterator[None]:
        """Count these requests while they are in work; raises `BadRequest` or `Refused` where a limit is passed."""
        check_work(requests, client.limits)
        limit, there = client.limits.at_once, self._num_at_work[client.name]
        if limit is not None and there + len(requests) > limit:
            _refuse(there, len(requests), limit)
        self._num_at_work[client.name] += len(requests)
        try:
            yield
        finally:
            self._num_at_work[client.name] -= len(requests)


def check_work(requests: Sequence[Request], limits: RequestLimits) -> None:
    """Raises `BadRequest` for a prompt that is too long, or for more work than one request may ask for."""
    first = requests[0]
    for param in ("prompt", "negative_prompt"):
        if (length := len(getattr(first, param))) > limits.prompt_chars:
            message = f"{param} has {length} characters; at most {limits.prompt_chars} are allowed"
            raise BadRequest(message, param=param)
    work = sum(each.width * each.height * each.num_frames * each.num_steps for each in requests) / 1e6
    if limits.megapixel_steps is not None and work > limits.megapixel_steps:
        message = (
            f"size {first.width}x{first.height} with {first.num_steps} steps, {len(requests)} times, is "
            f"{work:.3g} megapixel-steps; at most {limits.megapixel_steps} are allowed"
        )
        raise BadRequest(message, param="size")


def _own_limits(key: ApiKey, limits: RequestLimits) -> RequestLimits:
    own = {"megapixel_steps": key.megapixel_steps, "at_once": key.at_once}
    return replace(limits, **{name: value for name, value in own.items() if value is not None})


def _refuse(there: int, more: int, limit: int) -> None:
    if more > limit:
        raise BadRequest(f"n {more} is more than the {limit} pictures that you may have at once", param="n")
    message = f"you have {there} pictures in work, and may have {limit} at once; wait for one of them"
    raise Refused(message, retry_after_s=_RETRY_S)
