"""Permission to work: the messages from the planner to the ranks."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from epe.messages.requests import Request

Keep = Literal["none", "changes", "whole"]


class Stage(StrEnum):
    """The stages of a trajectory, in order."""

    ENCODE = "encode"
    DENOISE = "denoise"
    DECODE = "decode"
    FINISH = "finish"


class Lane(Struct, frozen=True, kw_only=True):
    """An ordered tuple of ranks that work together.

    `incarnation` grows when an error broke the exchanges of these ranks, so that no rank meets
    the remains of the broken group.
    """

    ranks: tuple[int, ...]
    incarnation: int = 0

    @property
    def width(self) -> int:
        return len(self.ranks)

    @property
    def head(self) -> int:
        return self.ranks[0]


class Split(Struct, frozen=True, kw_only=True):
    """How a lane divides a step: `cfg` guidance branches at once, each over `cp` ranks of each of `tp` planes.

    The ranks of a lane stand plane after plane, and in a plane branch after branch.
    """

    cfg: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def width(self) -> int:
        """Ranks of one plane."""
        return self.cfg * self.cp


class Transfer(Struct, frozen=True, kw_only=True):
    """`rank` lacks the state and fetches it from the rank `source`; None: from the leader, which has a checkpoint."""

    rank: int
    source: int | None

    @property
    def pair(self) -> tuple[int, int] | None:
        """(source, receiver); None where the leader is the source."""
        return None if self.source is None else (self.source, self.rank)


class Lease(Struct, frozen=True, kw_only=True, tag=True):
    """A lane's permission to run `num_steps` steps (or one encode or decode) of a request.

    It carries all that decides control flow: every rank of the lane does exactly what it says.
    Leases that share a rank run in the order of `seq` on it. Several requests of one size take their steps as one
    batch: by `batch_size` leases of the same lane and number of steps, of which this is the one at `batch_place`; they
    follow each other in `seq`, and their ranks run them at once.

    After one with a `checkpoint` the head sends the state that it ends with to the leader: what has changed since it
    last did, or the whole of it.
    """

    seq: int
    epoch: int
    lane: Lane
    stage: Stage
    request: Request
    first_step: int = 0
    num_steps: int = 0
    split: Split = Split()
    transfers: tuple[Transfer, ...] = ()
    checkpoint: Keep = "none"
    batch_size: int = 1
    batch_place: int = 0

    @property
    def plane(self) -> tuple[int, ...]:
        """Its ranks in the first plane: what the planner chose. All others stand at the same places of their planes."""
        return self.lane.ranks[: self.lane.width // self.split.tp]

    @property
    def num_tasks(self) -> int:
        """How many times it takes what its task takes: computed steps (with TeaCache: at most), or one encode or
        decode."""
        if self.stage is not Stage.DENOISE:
            return 1
        return self.request.num_computed(self.first_step, self.first_step + self.num_steps)

    @property
    def leaves_kept(self) -> bool:
        """Whether what FlexCache keeps of its request does not travel with the state: it is let go here."""
        reuse = self.request.reuse
        return reuse is not None and self.first_step in reuse.refreshed

    def transfer_to(self, rank: int) -> Transfer | None:
        """How `rank` gets the state, or None if it holds it already."""
        return next((t for t in self.transfers if t.rank == rank), None)


class Abandon(Struct, frozen=True, kw_only=True, tag=True):
    """Give up the exchange of this lane: one of its ranks is gone, and whoever waits for it waits in vain."""

    lane: Lane


class Drop(Struct, frozen=True, kw_only=True, tag=True):
    """Free what this rank holds of these requests."""

    request_ids: tuple[str, ...]


class Fetch(Struct, frozen=True, kw_only=True, tag=True):
    """Ask of a rank to another one or to the checkpoints: the canonical state of a request at the start of `step`; if
    `bare`, without what FlexCache keeps."""

    request_id: str
    step: int
    bare: bool = False


class Stop(Struct, frozen=True, kw_only=True, tag=True):
    """End this rank's work and its process; one that ends out of order is started again, one that is to come back
    `again` at once."""

    reason: str = ""
    orderly: bool = True
    again: bool = False
