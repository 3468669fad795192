"""Exchanges over memory that the GPUs of a lane reach straight: work of the device alone, which a graph can hold.

How messages pass, and how ranks wait for each other, is `epe.transport.ring`'s; what the memory is, `LaneMemory`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from epe.messages import Lane
from epe.transport.exchange import Bytes, GroupExchange
from epe.transport.ring import Layout

# Passes a message to a position of a table, and at once takes one from a position; either may be empty.
Launch = Callable[[Layout, torch.Tensor, int, int, torch.Tensor, torch.Tensor], None]


class LaneMemory(Protocol):
    """What one rank of a lane has of the memory that its ranks share."""

    layout: Layout
    # On the device: what `Layout.table` says of this rank.
    table: torch.Tensor

    closed: bool

    def close(self) -> None:
        """Let go whoever waits in it, now and later. May be called from any thread, and twice; returns at once. The
        memory is there until it is freed, so that what is just being launched finds it."""

    def free(self) -> None:
        """Give the memory back, when it is closed. By the thread that launches on it and captures, between two of
        these, whoever may still hold this."""


class FastWires:
    """Messages between the positions of a `table`; over for the host when they are launched."""

    def __init__(
        self, memory: LaneMemory, launch: Launch, *, position: int, table: torch.Tensor | None = None
    ) -> None:
        self.table = memory.table if table is None else table
        self.memory = memory
        self._launch = launch
        self._position = position

    @property
    def closed(self) -> bool:
        return self.memory.closed

    @property
    def num_bytes(self) -> int:
        """Of the device's memory, which this rank holds for the others of its lane."""
        return 0 if self.closed else self.memory.layout.num_bytes

    def start(self, outgoing: Bytes, incoming: Bytes) -> Callable[[], None]:
        """Each rank sends to one at a time and receives from one, all in the same order."""
        width = len(self.table)
        nothing = self.table.new_empty(0, dtype=torch.uint8)
        for offset in range(1, width):
            target, origin = (self._position + offset) % width, (self._position - offset) % width
            sent, received = outgoing.get(target, nothing), incoming.get(origin, nothing)
            if sent.numel() or received.numel():
                self._launch(self.memory.layout, self.table, target, origin, sent, received)
        return _nothing

    def reading(self, table: torch.Tensor, *, position: int) -> FastWires:
        """The same memory, whose positions are those of another table."""
        return FastWires(self.memory, self._launch, position=position, table=table)

    def close(self) -> None:
        self.memory.close()


class FastExchange(GroupExchange):
    """The exchange of a lane over `FastWires`. It finds the lane in memory of the device, so what was captured on one
    can be replayed on another."""

    def __init__(self, lane: Lane, *, position: int, wires: FastWires) -> None:
        super().__init__(lane, position=position, wires=wires)
        self.wires = wires

    @property
    def table(self) -> torch.Tensor:
        """What its launches read of the lane: a row for each position. Raises `Gone` if it was closed."""
        self.check()
        return self.wires.table

    def reading(self, table: torch.Tensor) -> FastExchange:
        """The exchange of whatever lane of this width and position `table` is of when the device comes to it."""
        wires = self.wires.reading(table, position=self.position)
        return FastExchange(self.lane, position=self.position, wires=wires)

    def _part(self, lane: Lane, positions: tuple[int, ...]) -> FastExchange:
        # With a table of its own: ranks of a part take turns alike, whether they know it as a part or by itself.
        position = positions.index(self.position)
        table = torch.stack([self.table[place] for place in positions])
        return FastExchange(lane, position=position, wires=self.wires.reading(table, position=position))


def _nothing() -> None:
    pass
