"""How long one request of the demo model takes alone on the device, with each setting of FlexCache in turn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.flexcache_drawing import Drawing, again, named
from benchmarks.flexcache_settings import Setting
from epe.cache import num_records
from epe.config.demo import model_folder
from epe.graphs import CudaGraphs, Graphs
from epe.messages import Reuse, Split
from epe.models.catalog import load_adapter
from epe.models.contract import Adapter
from epe.models.loading import Loading
from epe.models.reusing import kept_bytes, num_computed
from epe.transport.exchange import SoloExchange

CAPTURED = "captured speed"


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Seconds of the steps, and of the whole picture from prompt to pixels; steps that were computed, and the most
    bytes that were kept."""

    steps_s: float
    whole_s: float
    computed: int
    kept_bytes: int


def speeds(
    drawing: Drawing, everything: Sequence[Setting], num_steps: int, *, deadline_s: float
) -> Iterator[dict[str, Any]]:
    """Lines of all settings against no FlexCache, in rounds in which all take turns; on CUDA, before them those of
    forward passes that are captured and replayed. No round is begun after the deadline but the first."""
    adapters: dict[str, Adapter] = {}
    if drawing.device.type == "cuda":
        graphs = Graphs(CudaGraphs(drawing.device), budget_bytes=8 * 2**30)
        loading = Loading(device=drawing.device, graphs=graphs)
        adapters[CAPTURED] = load_adapter("zimage", model_folder("demo"), loading)
    adapters["speed"] = drawing.adapter
    for case, adapter in adapters.items():
        yield from _compared(case, adapter, drawing, everything, num_steps, deadline_s)


def _compared(
    case: str,
    adapter: Adapter,
    drawing: Drawing,
    everything: Sequence[Setting],
    num_steps: int,
    deadline_s: float,
) -> Iterator[dict[str, Any]]:
    plain: list[Taken] = []
    cached: list[list[Taken]] = [[] for _ in everything]
    for reuse in [None, *_with_passes_of_their_own(everything)]:
        for _ in range(2 if case == CAPTURED else 1):  # Passes are captured when they come again.
            _taken(adapter, drawing, num_steps, reuse)
    while len(plain) < drawing.plan.rounds and (not plain or time.monotonic() < deadline_s):
        plain.append(_taken(adapter, drawing, num_steps, None))
        for setting, taken in zip(everything, cached, strict=True):
            taken.append(_taken(adapter, drawing, num_steps, setting.reuse))
    about = {"case": case, "steps": num_steps, "rounds": len(plain)}
    middle = {name: median(getattr(each, name) for each in plain) for name in ("steps_s", "whole_s")}
    yield {**about, "strategy": "none", "value": num_steps, **middle}
    for setting, taken in zip(everything, cached, strict=True):
        ratios = sorted(one.steps_s / ours.steps_s for one, ours in zip(plain, taken, strict=True))
        whole = median(one.whole_s / ours.whole_s for one, ours in zip(plain, taken, strict=True))
        yield {
            **about,
            **named(setting),
            "computed": taken[0].computed,
            "speed_up": median(ratios),
            "least": ratios[0],
            "most": ratios[-1],
            "whole_speed_up": whole,
            "kept_bytes": taken[0].kept_bytes,
            "num_records": num_records(setting.reuse, num_steps),
        }


def _with_passes_of_their_own(everything: Sequence[Setting]) -> list[Reuse]:
    """Plans whose computed steps are not those of a request without FlexCache."""
    return [setting.reuse for setting in everything if not setting.reuse.has_usual_steps]


def _taken(adapter: Adapter, drawing: Drawing, num_steps: int, reuse: Reuse | None) -> Taken:
    request = again(drawing.states[0], num_steps, reuse).request
    _wait(drawing.device)
    start_s = time.perf_counter()
    begun = state = adapter.encode(request)
    _wait(drawing.device)
    encoded_s, most = time.perf_counter(), 0
    for _ in range(num_steps):
        state = adapter.step(state, SoloExchange(), Split())
        most = max(most, kept_bytes(state))
    _wait(drawing.device)
    stepped_s = time.perf_counter()
    pixels = adapter.decode(state)
    assert pixels is not None
    pixels.cpu()
    return Taken(
        steps_s=stepped_s - encoded_s,
        whole_s=time.perf_counter() - start_s,
        computed=num_computed(begun, state),
        kept_bytes=most,
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
