"""What one lease, or a batch of them, does on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from epe.execution.states import States
from epe.messages import Lane, Lease, Split, Stage
from epe.models.contract import Adapter, BatchAdapter, State
from epe.models.finite import check_finite
from epe.models.reusing import kept_bytes, num_computed
from epe.transport.exchange import Exchange, SoloExchange


class Lanes(Protocol):
    """Gives the exchange of a lane, built once and kept."""

    def exchange(self, lane: Lane, *, seq: int = 0) -> Exchange:
        """The exchange of an ordered tuple of ranks that this rank is in, for the lease `seq`."""

    def drop(self, lane: Lane) -> None:
        """Close an exchange that has failed, or whose ranks are not all there any more, from any thread: whoever waits
        in it fails. It is not given out again."""

    @property
    def num_bytes(self) -> int:
        """Of the device's memory, which the other ranks of its lanes reach."""


class SoloLanes:
    """The lanes of a world of one rank."""

    num_bytes = 0

    def exchange(self, lane: Lane, *, seq: int = 0) -> Exchange:
        return SoloExchange()

    def drop(self, lane: Lane) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Work:
    """What a lease gave: the step that is reached, device seconds (of one computed step for denoising), and on the
    first rank of a lane that decodes the pixels, on the device. Of its steps `num_computed` were computed; for others
    `kept_bytes` were kept at most."""

    next_step: int
    seconds: float
    pixels: torch.Tensor | None = None
    num_computed: int | None = None
    kept_bytes: int = 0


def run_lease(
    batch: Sequence[Lease],
    *,
    adapter: Adapter,
    lanes: Lanes,
    states: States,
    synchronize: Callable[[], None],
    in_bands: bool = False,
) -> list[Work]:
    """Run a lease whose state is here, or several that are one batch; decode `in_bands`, or whole as diffusers does.
    Raises what the task raises."""
    begin_s, lease = time.perf_counter(), batch[0]
    match lease.stage:
        case Stage.ENCODE:
            state = adapter.encode(lease.request)
            check_finite(state)
            synchronize()
            states.put(state)
            return [Work(0, time.perf_counter() - begin_s)]
        case Stage.DENOISE:
            held = [states.take(each.request.id, each.first_step) for each in batch]
            # The plan of a request may have changed since a rank that held its state has seen it.
            before = [replace(state, request=each.request) for state, each in zip(held, batch, strict=True)]
            exchange = lanes.exchange(lease.lane, seq=lease.seq)
            current, kept = before, [0] * len(batch)
            for current in denoised(lease, before, exchange, adapter=adapter):
                kept = [max(each, kept_bytes(state)) for each, state in zip(kept, current, strict=True)]
            synchronize()
            # An exchange that was given up while the device computed leaves whatever was in its buffers.
            exchange.check()
            for state in current:
                states.put(replace(state, lent=None))
            return _works(before, current, kept, seconds=time.perf_counter() - begin_s)
        case _:
            state = states.take(lease.request.id, lease.first_step)
            pixels = adapter.decode(state, lanes.exchange(lease.lane, seq=lease.seq) if in_bands else None)
            # Whoever copies the pixels from here does not wait for this thread's stream.
            synchronize()
            return [Work(lease.first_step, time.perf_counter() - begin_s, pixels)]


def _works(
    before: Sequence[State], after: Sequence[State], kept: Sequence[int], *, seconds: float
) -> list[Work]:
    """What the steps from one state of each request of a batch to another one gave."""
    computed = [num_computed(*each) for each in zip(before, after, strict=True)]
    one_s = seconds / max(1, *computed)
    return [
        Work(state.step, one_s, num_computed=count, kept_bytes=most)
        for state, count, most in zip(after, computed, kept, strict=True)
    ]


def denoised(
    lease: Lease, states: list[State], exchange: Exchange, *, adapter: Adapter
) -> Iterator[list[State]]:
    """The states after each step of a lease, or of a batch of such leases."""
    for _ in range(lease.num_steps):
        states = _stepped(adapter, states, exchange, lease.split)
        yield states
    check_finite(*states)


def _stepped(adapter: Adapter, states: list[State], exchange: Exchange, split: Split) -> list[State]:
    if len(states) == 1:
        return [adapter.step(states[0], exchange, split)]
    if not isinstance(adapter, BatchAdapter):
        raise ValueError(f"{adapter.family.name} draws one request at a time, and was given {len(states)}")
    return adapter.step_together(states, exchange, split)
