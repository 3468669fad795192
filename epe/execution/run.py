"""What one lease does on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from epe.execution.states import States
from epe.messages import Lane, Lease, Stage
from epe.models.contract import Adapter, State
from epe.models.finite import check_finite
from epe.transport.exchange import Exchange, SoloExchange


class Lanes(Protocol):
    """Gives the exchange of a lane, built once and kept."""

    def exchange(self, lane: Lane, *, seq: int = 0) -> Exchange:
        """The exchange of an ordered tuple of ranks that this rank is in, for the lease `seq`."""

    def drop(self, lane: Lane) -> None:
        """Close an exchange that has failed, or whose ranks are not all there any more, from any thread: whoever waits
        in it fails. It is not given out again."""


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
    lease: Lease, *, adapter: Adapter, lanes: Lanes, states: States, synchronize: Callable[[], None]
) -> Work:
    """Run a lease whose state is here. Raises what the task raises."""
    begin_s = time.perf_counter()
    match lease.stage:
        case Stage.ENCODE:
            states.put(adapter.encode(lease.request))
            synchronize()
            return Work(0, time.perf_counter() - begin_s)
        case Stage.DENOISE:
            state = states.take(lease.request.id, lease.first_step)
            exchange = lanes.exchange(lease.lane, seq=lease.seq)
            state = denoised(lease, state, exchange, adapter=adapter)
            synchronize()
            # An exchange that was given up while the device computed leaves whatever was in its buffers.
            exchange.check()
            states.put(state)
            seconds = (time.perf_counter() - begin_s) / lease.num_steps
            return Work(lease.first_step + lease.num_steps, seconds)
        case _:
            pixels = adapter.decode(states.take(lease.request.id, lease.first_step))
            return Work(lease.first_step, time.perf_counter() - begin_s, pixels)


def denoised(lease: Lease, state: State, exchange: Exchange, *, adapter: Adapter) -> State:
    """The state after the steps of a lease."""
    for _ in range(lease.num_steps):
        state = adapter.step(state, exchange, lease.split)
    check_finite(state)
    return state
