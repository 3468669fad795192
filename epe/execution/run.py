"""What one lease, or a batch of them, does on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from epe.execution.states import States
from epe.messages import Lane, Lease, Split, Stage
from epe.models.contract import Adapter, BatchAdapter, State
from epe.models.finite import check_finite
from epe.transport.exchange import Exchange, SoloExchange


class Lanes(Protocol):
    """Gives the exchange of a lane, built once and kept."""

    def exchange(self, lane: Lane, *, seq: int = 0) -> Exchange:
        """The exchange of an ordered tuple of ranks that this rank is in, for the lease `seq`."""

    def drop(self, lane: Lane) -> None:
        """Close an exchange that has failed; it is not given out again."""


class SoloLanes:
    """The lanes of a world of one rank."""

    def exchange(self, lane: Lane, *, seq: int = 0) -> Exchange:
        return SoloExchange()

    def drop(self, lane: Lane) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Work:
    """What a lease gave: the step that is reached, device seconds (of one step for denoising), pixels of a decode."""

    next_step: int
    seconds: float
    pixels: np.ndarray | None = None


def run_lease(
    batch: Sequence[Lease], *, adapter: Adapter, lanes: Lanes, states: States, synchronize: Callable[[], None]
) -> list[Work]:
    """Run a lease whose state is here, or several that are one batch. Raises what the task raises."""
    begin_s, lease = time.perf_counter(), batch[0]
    match lease.stage:
        case Stage.ENCODE:
            states.put(adapter.encode(lease.request))
            synchronize()
            return [Work(0, time.perf_counter() - begin_s)]
        case Stage.DENOISE:
            for state in denoised(batch, adapter=adapter, lanes=lanes, states=states):
                states.put(state)
            synchronize()
            seconds = (time.perf_counter() - begin_s) / lease.num_steps
            return [Work(each.first_step + each.num_steps, seconds) for each in batch]
        case _:
            pixels = adapter.decode(states.take(lease.request.id, lease.first_step))
            return [Work(lease.first_step, time.perf_counter() - begin_s, pixels)]


def denoised(batch: Sequence[Lease], *, adapter: Adapter, lanes: Lanes, states: States) -> list[State]:
    """The states after the steps of a batch, or of one lease. They are kept only when all of them are done."""
    current = [states.take(lease.request.id, lease.first_step) for lease in batch]
    exchange = lanes.exchange(batch[0].lane, seq=batch[0].seq)
    for _ in range(batch[0].num_steps):
        current = _stepped(adapter, current, exchange, batch[0].split)
    for state in current:
        check_finite(state)
    return current


def _stepped(adapter: Adapter, states: list[State], exchange: Exchange, split: Split) -> list[State]:
    if len(states) == 1:
        return [adapter.step(states[0], exchange, split)]
    if not isinstance(adapter, BatchAdapter):
        raise ValueError(f"{adapter.family.name} draws one request at a time, and was given {len(states)}")
    return adapter.step_together(states, exchange, split)
