"""How the ranks of one lane exchange tensors: any ordered tuple of ranks, blocking calls from the device thread."""

from __future__ import annotations

from typing import Protocol

import torch


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

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> torch.Tensor:
        """The tensor of position `source`, on every rank (elsewhere `tensor` gives shape and type)."""

    def send(self, tensor: torch.Tensor, *, target: int) -> None:
        """Send to one position, which calls `receive`."""

    def receive(self, like: torch.Tensor, *, source: int) -> torch.Tensor:
        """Receive a tensor of the shape and type of `like`."""

    def narrow(self, positions: tuple[int, ...]) -> Exchange:
        """The exchange of some positions of this lane (for the two halves of a guided step)."""

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

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> torch.Tensor:
        return tensor

    def send(self, tensor: torch.Tensor, *, target: int) -> None:
        raise ValueError("a lane of one rank has nobody to send to")

    def receive(self, like: torch.Tensor, *, source: int) -> torch.Tensor:
        raise ValueError("a lane of one rank has nobody to receive from")

    def narrow(self, positions: tuple[int, ...]) -> SoloExchange:
        return self

    def close(self) -> None:
        pass
