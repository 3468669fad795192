"""An exchange that notes what came in each call, and for how long the device's stream was in it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from epe.transport.exchange import Exchange, Pending


@dataclass
class Notes:
    """Of one pass: calls and received bytes by kind of call; seconds come after `synchronize`."""

    device: torch.device
    calls: Counter[str] = field(default_factory=Counter)
    received_bytes: Counter[str] = field(default_factory=Counter)
    _marks: list[tuple[Any, Any]] = field(default_factory=list)

    @contextmanager
    def of(self, kind: str, num_bytes: int) -> Iterator[None]:
        self.calls[kind] += 1
        self.received_bytes[kind] += num_bytes
        begin = self._mark()
        yield
        self._marks.append((begin, self._mark()))

    def seconds(self) -> float:
        """In exchanges: copying, and waiting for the slower rank."""
        if self.device.type == "cpu":
            return sum(end - begin for begin, end in self._marks)
        torch.cuda.synchronize(self.device)
        return sum(begin.elapsed_time(end) for begin, end in self._marks) / 1e3

    def _mark(self) -> Any:
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class NotedExchange:
    """Passes all on to an exchange, and notes it."""

    def __init__(self, exchange: Exchange, notes: Notes) -> None:
        self.width, self.position = exchange.width, exchange.position
        self._exchange, self._notes = exchange, notes

    def gather(self, part: torch.Tensor, sizes: tuple[int, ...], *, dim: int) -> torch.Tensor:
        row_bytes = part.nbytes // max(1, part.shape[dim])
        with self._notes.of("gather", row_bytes * (sum(sizes) - part.shape[dim])):
            return self._exchange.gather(part, sizes, dim=dim)

    def all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        with self._notes.of("all_to_all", self._coming(parts, shapes)):
            return self._exchange.all_to_all(parts, shapes)

    def start_all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> Pending:
        """What counts is the wait at its end."""
        pending, coming = self._exchange.start_all_to_all(parts, shapes), self._coming(parts, shapes)

        def take() -> list[torch.Tensor]:
            with self._notes.of("rows", coming):
                return pending()

        return take

    def narrow(self, positions: tuple[int, ...]) -> Exchange:
        part = self._exchange.narrow(positions)
        return part if part.width == 1 else NotedExchange(part, self._notes)  # type: ignore[return-value]

    def _coming(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> int:
        size = parts[self.position].element_size()
        counts = (torch.Size(shape).numel() for place, shape in enumerate(shapes) if place != self.position)
        return size * sum(counts)
