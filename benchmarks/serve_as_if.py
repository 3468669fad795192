"""`epe serve` without GPUs: each task lasts as long as a file of costs says that was kept on some, computing nothing.
All else is the service itself: its processes, planner, messages, states and files. For measurements alone.

    python -m benchmarks.serve_as_if STAGE_FILE TRACE_FILE COSTS_FILE
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from benchmarks.serve_raw_videos import any_codec, raw_video
from epe.actors.admission import workload_of
from epe.cli import child
from epe.launch.serve import run_serve
from epe.media import file, video
from epe.messages import Request, Split, Stage, StateHeader
from epe.models.contract import Adapter, State
from epe.planning.cost_set import CostSet, Size
from epe.planning.work import cost_key
from epe.runtime import rank
from epe.simulator.arrivals import request_of
from epe.simulator.costs import read_cost_set
from epe.transport.exchange import Exchange

COMMAND = (sys.executable, "-m", "benchmarks.serve_as_if")
COSTS = "BENCHMARK_COSTS"


class AsIf:
    """An adapter whose tasks last as long as they did elsewhere. All requests of a size start from what a small model
    has encoded, steps leave it as it is, and what is decoded is black."""

    def __init__(self, adapter: Adapter, costs: CostSet) -> None:
        self.family = adapter.family
        self.pipeline = adapter.pipeline
        self._adapter = adapter
        self._seconds = {task.key: task.seconds for task in costs.tasks}
        # Before anything is measured: it may take longer than the task.
        self._encoded = {_shape(size): adapter.encode(_request(size)) for size in costs.sizes}

    def encode(self, request: Request) -> State:
        with self._lasting(request, Stage.ENCODE, 1):
            return replace(self._encoded[_shape(request)], request=request)

    def step(self, state: State, exchange: Exchange, split: Split) -> State:
        _meet(exchange)
        with self._lasting(state.request, Stage.DENOISE, exchange.width):
            return replace(state, step=state.step + 1)

    def decode(self, state: State, exchange: Exchange | None = None) -> torch.Tensor | None:
        request, width = state.request, 1 if exchange is None else exchange.width
        if exchange is not None:
            _meet(exchange)
        with self._lasting(request, Stage.DECODE, width):
            if exchange is not None and exchange.position > 0:
                return None
            return torch.zeros((request.num_frames, request.height, request.width, 3), dtype=torch.uint8)

    def export_state(self, state: State) -> tuple[StateHeader, tuple[torch.Tensor, ...]]:
        return self._adapter.export_state(state)

    def import_state(self, request: Request, header: StateHeader, tensors: tuple[torch.Tensor, ...]) -> State:
        return self._adapter.import_state(request, header, tensors)

    @contextmanager
    def _lasting(self, request: Request, stage: Stage, width: int) -> Iterator[None]:
        begin_s = time.perf_counter()
        yield
        wanted_s = self._seconds[cost_key(workload_of(self.family, request), stage, width)]
        time.sleep(max(0.0, begin_s + wanted_s - time.perf_counter()))


def _shape(sized: Size | Request) -> tuple[int, int, int]:
    return sized.height, sized.width, sized.num_frames


def _request(size: Size) -> Request:
    return request_of(
        size.name,
        height=size.height,
        width=size.width,
        num_frames=size.num_frames,
        num_steps=size.num_steps,
        conditions=size.conditions,
        deadline_s=None,
    )


def _meet(exchange: Exchange) -> None:
    """The ranks of a lane wait for each other, as they do in the first exchange of a task."""
    exchange.gather(torch.zeros(1), (1,) * exchange.width, dim=0)


def _draw_as_if(costs: CostSet) -> None:
    """From now on a rank of this process loads such an adapter."""
    load = rank.adapter_of

    def adapter_of(*given: Any, **named: Any) -> Adapter:
        return AsIf(load(*given, **named), costs)

    rank.adapter_of = adapter_of


def main() -> None:
    if len(sys.argv) == 1:  # as one of its own children
        file.encode_video = raw_video
        _draw_as_if(read_cost_set(os.environ[COSTS]))
        child.main()
        return
    video.check_codec = any_codec
    stage, trace, os.environ[COSTS] = sys.argv[1:]
    sys.exit(run_serve(stage, log_level="debug", record_trace=trace, child_command=COMMAND))


if __name__ == "__main__":
    main()
