"""What actor systems say to each other about the life of their actors; the actor core alone sends these."""

from __future__ import annotations

from msgspec import Struct


class Watch(Struct, frozen=True, kw_only=True, tag=True):
    """Sent to an actor on another node: its system tells the sender, by a `Down`, when that actor is gone."""


class Down(Struct, frozen=True, kw_only=True, tag=True):
    """The watched actor at `address`, or its whole node, is gone. A watch is used up by its `Down`."""

    address: str
    reason: str
