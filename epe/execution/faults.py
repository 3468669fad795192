"""Faults that the stage file asks for, between the device thread and the adapter: a test hook, off unless asked for.

Without any there is nothing between them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from random import Random

import torch

from epe.config.faults import Fault
from epe.messages import Request, Split, Stage, StateHeader
from epe.models.contract import Adapter, BatchAdapter, State
from epe.planning.calibration import is_warm_up
from epe.telemetry.log import get_logger
from epe.transport.exchange import Exchange

log = get_logger("faults")


class InjectedFault(RuntimeError):
    """What a fault of kind `raise` raises: to the engine an error as any other."""


class _Armed:
    def __init__(self, fault: Fault, *, source: str) -> None:
        self.fault = fault
        self.left = fault.count
        self.random = Random(f"{fault.seed}/{source}")

    def strikes(self) -> bool:
        if self.left == 0 or self.random.random() >= self.fault.probability:
            return False
        if self.left is not None:
            self.left -= 1
        return True


class Faults:
    """Those that may strike in one life of a process; `rank` is None for the leader. May be asked from any thread."""

    def __init__(self, faults: Sequence[Fault], *, rank: int | None, life: int = 0) -> None:
        self.rank = rank
        self._lock = threading.Lock()
        self._armed = [
            _Armed(fault, source=f"{rank}/{life}/{index}")
            for index, fault in enumerate(faults)
            if fault.rank in (None, rank) and fault.life in (None, life)
        ]

    def strike(self, stage: Stage, *, request_id: str, prompt: str = "", step: int | None = None) -> bool:
        """Let strike what is due; True if the result is to be spoilt."""
        spoils = False
        for fault in self._due(stage, request_id=request_id, prompt=prompt, step=step):
            log.warning(
                "fault.struck", kind=fault.kind, stage=stage, rank=self.rank, step=step, request=request_id
            )
            spoils = spoils or fault.kind == "nan"
            _act(fault, where=f"{stage}" if step is None else f"{stage}, step {step}")
        return spoils

    def _due(self, stage: Stage, *, request_id: str, prompt: str, step: int | None) -> list[Fault]:
        with self._lock:
            return [
                armed.fault
                for armed in self._armed
                if _fits(armed.fault, stage, request_id, prompt, step) and armed.strikes()
            ]


def _fits(fault: Fault, stage: Stage, request_id: str, prompt: str, step: int | None) -> bool:
    return (
        fault.stage in ((stage.value,) if stage is Stage.FINISH else (None, stage.value))
        and fault.step in (None, step)
        and (fault.prompt is None or fault.prompt in prompt)
        and fault.warm_up is is_warm_up(request_id)
    )


def _act(fault: Fault, *, where: str) -> None:
    match fault.kind:
        case "raise":
            raise InjectedFault(f"a fault was asked for at {where}")
        case "oom":
            raise torch.OutOfMemoryError(f"a want of memory was asked for at {where}")
        case "hang":
            threading.Event().wait()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "slow":
            time.sleep(fault.seconds)


class FaultyAdapter:
    """An adapter whose tasks are struck by faults; else as the adapter that it wraps."""

    def __init__(self, adapter: Adapter, faults: Faults) -> None:
        self.family = adapter.family
        self.pipeline = adapter.pipeline
        self._adapter = adapter
        self._faults = faults

    def encode(self, request: Request) -> State:
        spoils = self._faults.strike(Stage.ENCODE, request_id=request.id, prompt=request.prompt)
        state = self._adapter.encode(request)
        return _spoilt(state) if spoils else state

    def step(self, state: State, exchange: Exchange, split: Split) -> State:
        spoils = self._strike(Stage.DENOISE, state)
        after = self._adapter.step(state, exchange, split)
        return _spoilt(after) if spoils else after

    def decode(self, state: State, exchange: Exchange | None = None) -> torch.Tensor | None:
        return self._adapter.decode(_spoilt(state) if self._strike(Stage.DECODE, state) else state, exchange)

    def export_state(self, state: State) -> tuple[StateHeader, tuple[torch.Tensor, ...]]:
        return self._adapter.export_state(state)

    def import_state(self, request: Request, header: StateHeader, tensors: tuple[torch.Tensor, ...]) -> State:
        return self._adapter.import_state(request, header, tensors)

    def _strike(self, stage: Stage, state: State) -> bool:
        request, step = state.request, state.step if stage is Stage.DENOISE else None
        return self._faults.strike(stage, request_id=request.id, prompt=request.prompt, step=step)


class FaultyBatchAdapter(FaultyAdapter):
    """Of a family that draws several requests as one batch."""

    _adapter: BatchAdapter

    def step_together(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[State]:
        spoils = [self._strike(Stage.DENOISE, state) for state in states]
        after = self._adapter.step_together(states, exchange, split)
        return [_spoilt(state) if spoilt else state for state, spoilt in zip(after, spoils, strict=True)]


def with_faults(adapter: Adapter, faults: Sequence[Fault], *, rank: int, life: int) -> Adapter:
    """The adapter itself where no fault is asked for."""
    if not faults:
        return adapter
    armed = Faults(faults, rank=rank, life=life)
    return (FaultyBatchAdapter if isinstance(adapter, BatchAdapter) else FaultyAdapter)(adapter, armed)


def _spoilt(state: State) -> State:
    """With NaN in every tensor of floats."""
    tensors = {
        name: torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor
        for name, tensor in state.tensors.items()
    }
    return State(request=state.request, step=state.step, tensors=tensors, scalars=state.scalars)
