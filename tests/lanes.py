"""Lanes of threads in one process: the numerics of sharded models without sockets or start-up times."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from epe.transport.exchange import Exchange, SoloExchange

T = TypeVar("T")
WAIT_S = 60.0


class Meeting:
    """Where the ranks of one lane lay down their parts."""

    def __init__(self, width: int) -> None:
        self.barrier = threading.Barrier(width)
        self.parts: list[torch.Tensor | None] = [None] * width
        self.halves: dict[tuple[int, ...], Meeting] = {}
        self.lock = threading.Lock()

    def half(self, positions: tuple[int, ...]) -> Meeting:
        with self.lock:
            return self.halves.setdefault(positions, Meeting(len(positions)))


class ThreadExchange:
    """The exchange of one thread. Only what sequence and guidance use."""

    def __init__(self, meeting: Meeting, position: int, width: int) -> None:
        self.width = width
        self.position = position
        self.num_gathers = 0
        self._meeting = meeting

    def gather(self, part: torch.Tensor, sizes: tuple[int, ...], *, dim: int) -> torch.Tensor:
        assert part.shape[dim] == sizes[self.position]
        self.num_gathers += 1
        self._meeting.parts[self.position] = part
        self._meeting.barrier.wait(WAIT_S)
        whole = torch.cat([p for p in self._meeting.parts if p is not None], dim=dim)
        self._meeting.barrier.wait(WAIT_S)
        return whole

    def narrow(self, positions: tuple[int, ...]) -> Exchange:
        if len(positions) == 1:
            return SoloExchange()
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
