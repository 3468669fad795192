"""What an operator may ask of a service while it runs, and how far that has come."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Action = Literal["cordon", "drain", "readmit"]


class Operate(Struct, frozen=True, kw_only=True, tag=True):
    """Ask: do this to a rank. Cordoned, it gets no more leases; to drain it is to cordon it and to tell when nothing is
    only there; readmitted, it works again. Answered with `Status`, or `Rejected`."""

    action: Action
    rank: int


class RestartRanks(Struct, frozen=True, kw_only=True, tag=True):
    """Ask: restart all ranks, one after the other; each is drained before. They are expected to come back with these
    `weights`, as `RankReady` names them. Answered with `Status`, or `Rejected`."""

    weights: str


class RestartStatus(Struct, frozen=True, kw_only=True):
    """A restart of all ranks: the one that is drained or on its way back (None: the next one is about to be), and those
    that come after it."""

    rank: int | None
    waiting: tuple[int, ...]
