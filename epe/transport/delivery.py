"""The one function of this process that a peer may call over torch RPC, and what such a call brings.

It hands over to the link of this process, which stands here since RPC finds functions by their names.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, Protocol

import torch
from torch.distributed import rpc

from epe.errors import Gone
from epe.transport.packing import Packed, pack
from epe.transport.wire import Codec, error_to_wire


class Kind(IntEnum):
    """What a call of `deliver` brings: a message, a message that wants an answer, the standing call, or the leader's
    word that a node (the target) is struck off, or is back under a name (the sender)."""

    TELL = 0
    ASK = 1
    STAND = 2
    STRIKE_OFF = 3
    ADMIT = 4


class Addressee(Protocol):
    """The link of a process, as its calls meet it."""

    epoch: int

    def hand_over(self, call: Callable[[], None]) -> None:
        """Have the link's loop make this call."""

    def arrive(
        self, kind: Kind, target: str, sender: str, packed: Packed, answered: torch.futures.Future
    ) -> None:
        """Take in one call; on the loop."""


_addressee: Addressee | None = None


def direct_calls_to(link: Addressee | None) -> Addressee | None:
    """From now on calls are for this link (None: for nobody); gives the one before."""
    global _addressee
    before, _addressee = _addressee, link
    return before


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def deliver(epoch: int, kind: int, target: str, sender: str, *packed: Any) -> torch.futures.Future:
    """All that a peer may call. Runs on the one RPC thread, which only hands over to the loop."""
    answered: torch.futures.Future = torch.futures.Future()
    link = _addressee
    if link is None or link.epoch != epoch:
        here = "no epoch" if link is None else f"epoch {link.epoch}"
        refusal = Gone(f"a message of epoch {epoch} came to a process of {here}")
        answered.set_result(pack(Codec(), error_to_wire(refusal)))
    else:
        link.hand_over(partial(link.arrive, Kind(kind), target, sender, packed, answered))
    return answered


ENDPOINT = (deliver.__module__, deliver.__name__)
