"""What capturing needs of a device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch


class Graph(Protocol):
    """The work between `begin` and `end`, which `replay` does again on the same memory.

    Raises `RuntimeError` where the work cannot be captured: it waited for the device, or memory ran out.
    """

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def replay(self) -> None: ...


class GraphDevice(Protocol):
    """Makes the graphs of one device. Graphs of one pool share its memory: they are replayed one at a time, and what
    one has left there the next may overwrite."""

    def new_pool(self) -> object: ...

    def graph(self, pool: object) -> Graph: ...

    def aside(self) -> AbstractContextManager[None]:
        """Graphs begin and end within it, while other threads use the device."""

    def without_owning(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor's memory, which its pool may give to others once `tensor` is let go."""

    def used_bytes(self) -> int:
        """Of the device's memory, by this process; 0 where that is not known."""

    def let_go(self) -> None:
        """Give back what freed graphs have left; waits for the device."""
