"""Lanes of threads in one process: the numerics of sharded models without sockets or start-up times."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from epe.transport.exchange import Exchange, Pending, SoloExchange

T = TypeVar("T")
WAIT_S = 60.0


class Meeting:
    """Where the ranks of one lane lay down their parts."""

    def __init__(self, width: int) -> None:
        self.barrier = threading.Barrier(width)
        self.parts: list[Any] = [None] * width
        self.halves: dict[tuple[int, ...], Meeting] = {}
        self.lock = threading.Lock()

    def half(self, positions: tuple[int, ...]) -> Meeting:
        with self.lock:
            return self.halves.setdefault(positions, Meeting(len(positions)))


class ThreadExchange:
    """The exchange of one thread. Only what sequence, guidance and FlexCache use."""

    def __init__(self, meeting: Meeting, position: int, width: int) -> None:
        self.width = width
        self.position = position
        self.num_exchanges = 0
        self.num_received_bytes = 0
        self._meeting = meeting

    def check(self) -> None:
        """It is never given up."""

    def gather(self, part: torch.Tensor, sizes: tuple[int, ...], *, dim: int) -> torch.Tensor:
        assert part.shape[dim] == sizes[self.position]
        parts = self._swap(part, lambda laid: laid)
        assert tuple(p.shape[dim] for p in parts) == sizes
        return torch.cat(parts, dim=dim)

    def all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        assert len(parts) == self.width
        received = self._swap(parts, lambda laid: laid[self.position])
        assert [tuple(part.shape) for part in received] == shapes
        return received

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> torch.Tensor:
        return self._swap(tensor, lambda laid: laid)[source]

    def start_all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> Pending:
        received = self.all_to_all(parts, shapes)
        return lambda: received

    def _swap(self, given: Any, take: Callable[[Any], torch.Tensor]) -> list[torch.Tensor]:
        """Lay down what is `given`, and take from each position, as it would arrive: contiguous copies."""
        self.num_exchanges += 1
        self._meeting.parts[self.position] = given
        self._meeting.barrier.wait(WAIT_S)
        taken = [take(laid).contiguous().clone() for laid in self._meeting.parts]
        self._meeting.barrier.wait(WAIT_S)
        others = (part for position, part in enumerate(taken) if position != self.position)
        self.num_received_bytes += sum(part.nbytes for part in others)
        return taken

    def narrow(self, positions: tuple[int, ...]) -> Exchange:
        if len(positions) == 1:
            return SoloExchange()
        if positions == tuple(range(self.width)):
            return self  # type: ignore[return-value]
        return ThreadExchange(self._meeting.half(positions), positions.index(self.position), len(positions))  # type: ignore[return-value]


def on_lane(width: int, task: Callable[[ThreadExchange], T]) -> list[T]:
    """Run `task` on every rank of a lane of `width` threads; the results by position. Raises the first error."""
    meeting = Meeting(width)

    def run(position: int) -> T:
        torch.set_num_threads(1)
        try:
            return task(ThreadExchange(meeting, position, width))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(width) as pool:
        futures = [pool.submit(run, position) for position in range(width)]
    errors = [error for f in futures if (error := f.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [f.result() for f in futures]
