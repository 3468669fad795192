"""How the ranks of one lane, any ordered tuple of them, exchange tensors: blocking calls from the device thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from epe.errors import Gone
from epe.messages import Lane
from epe.transport.agent import reason_of

# Bytes to or from each position of a lane: contiguous one-dimensional uint8 tensors.
Bytes = dict[int, torch.Tensor]
# An exchange that was started: waits for its end and gives the tensors that came.
Pending = Callable[[], list[torch.Tensor]]


class Exchange(Protocol):
    """The exchanges of one lane. `position` is this rank's place in it, `width` its number of ranks.

    Every rank of the lane makes the same calls in the same order. A call that fails raises `Gone`;
    the exchange is then closed and never used again. None of them reduces: bytes arrive as sent.
    """

    width: int
    position: int

    def gather(self, part: torch.Tensor, sizes: tuple[int, ...], *, dim: int) -> torch.Tensor:
        """All parts along `dim` in lane order, on every rank; `sizes[i]` is position i's extent there."""

    def all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        """Send `parts[i]` to position i and receive a tensor of `shapes[i]` from it."""

    def start_all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> Pending:
        """An `all_to_all` that goes on while the caller computes: call what it gives for the tensors, before the next
        exchange."""

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> torch.Tensor:
        """The tensor of position `source`, on every rank (elsewhere `tensor` gives shape and type)."""

    def send(self, tensor: torch.Tensor, *, target: int) -> None:
        """Send to one position, which calls `receive`."""

    def receive(self, like: torch.Tensor, *, source: int) -> torch.Tensor:
        """Receive a tensor of the shape and type of `like`."""

    def narrow(self, positions: tuple[int, ...]) -> Exchange:
        """The exchange of some positions of this lane, over the same connections: halves of a guided step, planes
        and columns of tensor parallelism. Closing it closes the whole."""

    def check(self) -> None:
        """Raise `Gone` if it was closed, which on a GPU may pass unnoticed by the calls before."""

    def close(self) -> None:
        """Drop the connections; peers that wait on this rank fail at once."""


class SoloExchange:
    """The lane of one rank: nothing to exchange."""

    width = 1
    position = 0

    def gather(self, part: torch.Tensor, sizes: tuple[int, ...], *, dim: int) -> torch.Tensor:
        return part

    def all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        return parts

    def start_all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> Pending:
        return lambda: parts

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> torch.Tensor:
        return tensor

    def send(self, tensor: torch.Tensor, *, target: int) -> None:
        raise ValueError("a lane of one rank has nobody to send to")

    def receive(self, like: torch.Tensor, *, source: int) -> torch.Tensor:
        raise ValueError("a lane of one rank has nobody to receive from")

    def narrow(self, positions: tuple[int, ...]) -> SoloExchange:
        return self

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


class Wires(Protocol):
    """The connections of one lane, that move bytes and know nothing of tensors' meaning."""

    def start(self, outgoing: Bytes, incoming: Bytes) -> Callable[[], None]:
        """Send and receive at once, to and from the named positions; call what it gives to wait for it. Both raise
        `RuntimeError` when that fails."""

    @property
    def closed(self) -> bool:
        """Whether the connections were dropped."""

    def close(self) -> None:
        """Drop the connections; may be called from any thread, and twice."""


class GroupExchange:
    """The exchange of a lane of several ranks, each connected to each: one dead rank is felt by all at once.

    `places` are those of its positions on the wires, which the parts of a lane share: two ranks send to each other
    in the order of the program that both run, whichever part it is for.
    """

    def __init__(
        self, lane: Lane, *, position: int, wires: Wires, places: tuple[int, ...] | None = None
    ) -> None:
        self.lane = lane
        self.width = lane.width
        self.position = position
        self._wires = wires
        self._places = places or tuple(range(lane.width))
        # A part is the same one each time: what is found out about a lane is kept for as long as its exchange lives.
        self._parts: dict[tuple[int, ...], GroupExchange] = {}

    @property
    def closed(self) -> bool:
        """Whether its connections were dropped, by this rank or after an error."""
        return self._wires.closed

    def gather(self, part: torch.Tensor, sizes: tuple[int, ...], *, dim: int) -> torch.Tensor:
        if len(sizes) != self.width or part.shape[dim] != sizes[self.position]:
            raise ValueError(f"position {self.position} gathers {tuple(part.shape)} along {dim} as {sizes}")
        part = part.contiguous()
        shapes = [_resized(part.shape, dim, size) for size in sizes]
        incoming = {peer: part.new_empty(shapes[peer]) for peer in self._peers()}
        received = self._swap("gather", dict.fromkeys(self._peers(), part), incoming)
        return torch.cat([received.get(position, part) for position in range(self.width)], dim=dim)

    def all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        return self.start_all_to_all(parts, shapes)()

    def start_all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> Pending:
        if len(parts) != self.width or len(shapes) != self.width:
            raise ValueError(f"{len(parts)} parts and {len(shapes)} shapes for a lane of {self.width} ranks")
        own = parts[self.position]
        outgoing = {peer: parts[peer] for peer in self._peers()}
        incoming = {peer: own.new_empty(shapes[peer]) for peer in self._peers()}
        finish = self._start("all_to_all", outgoing, incoming)

        def take() -> list[torch.Tensor]:
            received = finish()
            return [received.get(position, own) for position in range(self.width)]

        return take

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> torch.Tensor:
        if source == self.position:
            self._swap("broadcast", dict.fromkeys(self._peers(), tensor.contiguous()), {})
            return tensor
        return self._swap("broadcast", {}, {source: tensor.new_empty(tensor.shape)})[source]

    def send(self, tensor: torch.Tensor, *, target: int) -> None:
        self._swap("send", {self._peer(target): tensor}, {})

    def receive(self, like: torch.Tensor, *, source: int) -> torch.Tensor:
        return self._swap("receive", {}, {self._peer(source): like.new_empty(like.shape)})[source]

    def narrow(self, positions: tuple[int, ...]) -> Exchange:
        if self.position not in positions:
            raise ValueError(f"position {self.position} cannot narrow {self._described()} to {positions}")
        if len(positions) == 1:
            return SoloExchange()
        if positions == tuple(range(self.width)):
            return self
        if positions not in self._parts:
            ranks = tuple(self.lane.ranks[p] for p in positions)
            lane = Lane(ranks=ranks, incarnation=self.lane.incarnation)
            self._parts[positions] = self._part(lane, positions)
        return self._parts[positions]

    def check(self) -> None:
        if self.closed:
            raise Gone(f"{self._described()} was closed")

    def close(self) -> None:
        self._wires.close()

    def _part(self, lane: Lane, positions: tuple[int, ...]) -> GroupExchange:
        places = tuple(self._places[p] for p in positions)
        return GroupExchange(lane, position=positions.index(self.position), wires=self._wires, places=places)

    def _swap(self, operation: str, outgoing: Bytes, incoming: Bytes) -> Bytes:
        """Move tensors of any shape and type; gives `incoming`, filled."""
        return self._start(operation, outgoing, incoming)()

    def _start(self, operation: str, outgoing: Bytes, incoming: Bytes) -> Callable[[], Bytes]:
        if self.closed:
            raise Gone(f"{operation} on {self._described()}: it is closed")
        sent = {peer: _bytes(tensor.contiguous()) for peer, tensor in outgoing.items() if tensor.numel()}
        received = {peer: _bytes(tensor) for peer, tensor in incoming.items() if tensor.numel()}
        try:
            wait = self._wires.start(self._on_wires(sent), self._on_wires(received))
        except RuntimeError as error:
            raise self._failed(operation, error) from error

        def finish() -> Bytes:
            try:
                wait()
            except RuntimeError as error:
                raise self._failed(operation, error) from error
            return incoming

        return finish

    def _failed(self, operation: str, error: RuntimeError) -> Gone:
        """Close the wires. The error loses its traceback, whose frames would keep the connections open and the others
        waiting; so would those of a context manager."""
        self.close()
        error.with_traceback(None)
        return Gone(f"{operation} on {self._described()}: {reason_of(error)}")

    def _on_wires(self, tensors: Bytes) -> Bytes:
        return {self._places[position]: tensor for position, tensor in tensors.items()}

    def _peers(self) -> list[int]:
        """The other positions, the next one first, so that not all send to the same one at once."""
        return [(self.position + offset) % self.width for offset in range(1, self.width)]

    def _peer(self, position: int) -> int:
        if position == self.position or not 0 <= position < self.width:
            raise ValueError(f"position {self.position} has no peer {position} in {self._described()}")
        return position

    def _described(self) -> str:
        return f"lane {self.lane.ranks} (incarnation {self.lane.incarnation}) at position {self.position}"


def _resized(shape: torch.Size, dim: int, size: int) -> tuple[int, ...]:
    sizes = list(shape)
    sizes[dim] = size
    return tuple(sizes)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a row of bytes, so that every type travels as it is."""
    return tensor.view(-1).view(torch.uint8)
