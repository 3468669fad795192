"""What the planner sends to itself later."""

from __future__ import annotations

from msgspec import Struct


class Wake(Struct, frozen=True, kw_only=True):
    """A rank is about to be free."""


class Look(Struct, frozen=True, kw_only=True):
    """Is any lease over its limit?"""


class StartBy(Struct, frozen=True, kw_only=True):
    """The service should have started by now."""


class Expire(Struct, frozen=True, kw_only=True):
    """The deadline of a request has passed."""

    request_id: str


class Keep(Struct, frozen=True, kw_only=True):
    """What was learned meanwhile is worth keeping."""
