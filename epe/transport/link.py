"""What the actors know of the network: a link carries messages between nodes, and says when a node is gone.

A node is a process of the world (`leader`, `r0`, `r1`, ...); an address is `actor@node`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message with tensors beside it. The tensors are opaque here: only the data plane looks into them."""

    message: Any
    tensors: tuple[Any, ...] = ()


class Receiver(Protocol):
    """The near end of a link: the actor system of this node."""

    def deliver(self, target: str, sender: str, message: Any) -> None:
        """Put a message (or `Parcel`) from another node into a local mailbox."""

    async def answer(self, target: str, sender: str, message: Any) -> Any:
        """Put an ask from another node into a local mailbox and wait for its answer, without a time limit.

        The ask is in the mailbox when the call returns the coroutine, so that it keeps its place
        among messages. The coroutine raises the `EpeError` that the asker is to see.
        """

    def node_down(self, node: str, reason: str) -> None:
        """A node is gone; everybody who linked to one of its actors hears of it."""


class Link(Protocol):
    """Carries messages to other nodes, first in first out for each pair of nodes.

    Not guaranteed: that a message to a dying node arrives. Guaranteed: `Receiver.node_down` is then called.
    """

    @property
    def node(self) -> str:
        """The name of this node."""

    def send(self, target: str, sender: str, message: Any) -> None:
        """Send without an answer; raises `Gone` if the node is known to be gone."""

    async def ask(self, target: str, sender: str, message: Any, timeout_s: float) -> Any:
        """Send and wait for the answer; raises `Gone` if the far end is, `TimeoutError` when it is late."""
