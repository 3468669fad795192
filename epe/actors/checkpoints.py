"""Keeps the last state of each request on the leader, so that a lost rank costs a lease of work and no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from epe.actors.core import Actor
from epe.actors.directory import Directory
from epe.errors import Gone, Overloaded
from epe.messages import KEPT, Checkpoint, Checkpointed, Drop, Fetch, LeaseDone, StateHeader
from epe.telemetry.log import get_logger
from epe.transport.link import Parcel

# A whole state: its header and its tensors by name.
Seen = Callable[[StateHeader, Mapping[str, Any]], None]

log = get_logger("checkpoints")


@dataclass(frozen=True, slots=True)
class _Kept:
    """One state, after the lease `seq`: its tensors by name, in host memory."""

    seq: int
    header: StateHeader
    tensors: dict[str, Any]
    num_bytes: int

    @property
    def whole(self) -> StateHeader:
        """The header with which all of it travels."""
        header = self.header
        return StateHeader(
            request_id=header.request_id,
            step=header.step,
            names=tuple(self.tensors),
            scalars=header.scalars,
            reuse=header.reuse,
        )


class Checkpoints(Actor):
    """One for each leader; holds at most `limit_bytes`. When that is not enough, the requests that have done the
    fewest steps lose theirs first: to start them again costs least. `seen` is called with each state that comes; it
    takes no time."""

    inbox = 4096

    def __init__(
        self, *, directory: Directory, limit_bytes: int, seen: Seen = lambda header, tensors: None
    ) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self.seen = seen
        self.kept: dict[str, _Kept] = {}

    async def receive(self, message: object) -> object:
        match message:
            case Parcel(message=Checkpoint() as checkpoint, tensors=tensors):
                self._keep(checkpoint, tensors)
                if checkpoint.report is not None:
                    self._tell(checkpoint.report)
            case Fetch(request_id=request_id, step=step, bare=bare):
                return self._parcel(request_id, step, bare=bare)
            case Drop(request_ids=request_ids):
                for request_id in request_ids:
                    self.kept.pop(request_id, None)
        return None

    @property
    def num_bytes(self) -> int:
        """Bytes in hand."""
        return sum(kept.num_bytes for kept in self.kept.values())

    def _keep(self, checkpoint: Checkpoint, tensors: tuple[Any, ...]) -> None:
        header = checkpoint.header
        before = self.kept.get(header.request_id)
        if before and before.seq > checkpoint.seq:
            return  # Two heads sent theirs, and the earlier one took longer.
        known = before.tensors if before else {}
        if not known.keys() >= set(header.unchanged):
            # What it builds on was let go: only a whole state can take its place.
            self._let_go(header.request_id, checkpoint.seq)
            return
        named = {name: known[name] for name in header.unchanged} | dict(
            zip(header.names, tensors, strict=True)
        )
        num_bytes = sum(int(getattr(tensor, "nbytes", 0)) for tensor in named.values())
        kept = self.kept[header.request_id] = _Kept(checkpoint.seq, header, named, num_bytes)
        self.seen(kept.whole, named)
        self._tell(Checkpointed(request_id=header.request_id, seq=checkpoint.seq, step=header.step))
        self._make_room()

    def _make_room(self) -> None:
        while self.num_bytes > self.limit_bytes:
            least = min(self.kept.values(), key=lambda kept: kept.header.step)
            request_id = least.header.request_id
            log.info("checkpoint.was_dropped", request=request_id, limit_bytes=self.limit_bytes)
            self._let_go(request_id, least.seq)

    def _let_go(self, request_id: str, seq: int) -> None:
        self.kept.pop(request_id, None)
        self._tell(Checkpointed(request_id=request_id, seq=seq, step=None))

    def _tell(self, message: Checkpointed | LeaseDone) -> None:
        # A planner that has no room for it does with the checkpoint that it knows of, and finds the lease overdue.
        with suppress(Overloaded):
            self.ref(self.directory.planner).tell(message)

    def _parcel(self, request_id: str, step: int, *, bare: bool) -> Parcel:
        kept = self.kept.get(request_id)
        if kept is None or kept.header.step != step:
            held = "nothing" if kept is None else f"step {kept.header.step}"
            raise Gone(f"the checkpoint of request {request_id} at step {step} is not here (held: {held})")
        if not bare:
            return Parcel(kept.whole, tuple(kept.tensors.values()))
        named = {name: tensor for name, tensor in kept.tensors.items() if not name.startswith(KEPT)}
        return Parcel(replace(kept.whole, names=tuple(named)), tuple(named.values()))
