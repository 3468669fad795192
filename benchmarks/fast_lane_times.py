"""Cases of `benchmarks.fast_lane`, run by every rank, of what is timed: exchanges, layouts of memory and steps."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

import torch
from torch.distributed import PrefixStore

from benchmarks.fast_lane_ranks import REPEATS, Lanes, Line, gathering
from benchmarks.place import Setting
from benchmarks.random_pipeline import make_adapter
from benchmarks.step_entrants import GRAPH_BYTES, Bench, StepCase, graph_device
from epe.graphs import Graphs
from epe.messages import Lane, Split
from epe.telemetry.log import configure
from epe.transport import symmetric
from tests.world import RankContext

PARTS_KIB = (4, 64, 256, 1024, 4096, 14336, 65536)
ROUNDS = 5
LAYOUTS = ((32, 128), (64, 64), (64, 128), (64, 256))


def exchanges(context: RankContext, setting: Setting, transports: tuple[str, ...]) -> list[Line]:
    """Gathers one after the other, as they are and in a captured pass: microseconds of each on the device and at the
    host; the ways in turn, in rounds."""
    configure(json=True, level="warning")
    lanes, lines = Lanes(context, setting, transports), []
    ways = list(product(transports, (False, True)))
    for kib in PARTS_KIB[: 3 if setting.tiny else None]:
        part = torch.randn(kib << 9, device=lanes.device).to(torch.bfloat16)
        work = {way: gathering(lanes, *way) for way in ways}
        for each in work.values():
            for _ in range(3):
                each(part)
        found: dict[tuple[str, bool], list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, each in work.items():
                lanes.meet()
                begin_s = time.perf_counter()
                each(part)
                host_s = time.perf_counter() - begin_s
                lanes.synchronize()
                found[way].append((time.perf_counter() - begin_s, host_s))
        for (transport, captured), times in found.items():
            device_s, host_s = (
                median(lanes.of_last(list(each))) / REPEATS for each in zip(*times, strict=True)
            )
            received = (lanes.world - 1) * (kib << 10)
            lines.append(
                {
                    "transport": transport,
                    "captured": captured,
                    "part_kib": kib,
                    "device_us": round(1e6 * device_s, 2),
                    "host_us": round(1e6 * host_s, 2),
                    "gb_per_s": round(received / device_s / 1e9, 2),
                }
            )
    lanes.close()
    return lines


def layouts(context: RankContext, setting: Setting) -> list[Line]:
    """Captured gathers over memory of other layouts; the one in force is taken from these figures."""
    configure(json=True, level="warning")
    lines: list[Line] = []
    in_force = symmetric.NUM_BLOCKS, symmetric.SLOT_BYTES
    for num_blocks, slot_kib in LAYOUTS:
        symmetric.NUM_BLOCKS, symmetric.SLOT_BYTES = num_blocks, slot_kib << 10
        lanes = Lanes(
            replace(context, store=PrefixStore(f"{num_blocks}/{slot_kib}", context.store)),
            setting,
            (setting.backend,),
        )
        for kib in PARTS_KIB[: 3 if setting.tiny else None]:
            part = torch.randn(kib << 9, device=lanes.device).to(torch.bfloat16)
            gather = gathering(lanes, setting.backend, captured=True)
            times = []
            for number in range(3 + ROUNDS):
                lanes.meet()
                begin_s = time.perf_counter()
                gather(part)
                lanes.synchronize()
                times += [time.perf_counter() - begin_s] if number >= 3 else []
            device_us = 1e6 * median(lanes.of_last(times)) / REPEATS
            lines.append(
                {
                    "num_blocks": num_blocks,
                    "slot_kib": slot_kib,
                    "part_kib": kib,
                    "device_us": round(device_us, 2),
                }
            )
        lanes.close()
    symmetric.NUM_BLOCKS, symmetric.SLOT_BYTES = in_force
    return lines


def steps(
    context: RankContext, setting: Setting, transports: tuple[str, ...], case: StepCase, end_s: float
) -> list[Line]:
    """Milliseconds of a captured step on one rank and on the lane over each transport, in turn, in rounds."""
    configure(json=True, level="warning")
    lanes = Lanes(context, setting, transports)
    kept = context.kept
    if kept.get("family") != case.family:
        for name in ("bench", "adapters"):
            kept.pop(name, None)
        kept["family"] = case.family
        kept["bench"] = Bench(case.family, device=lanes.device, tiny=setting.tiny)
        kept["adapters"] = {}
    ways = [("alone", True), *product(transports, (False, True))]
    drawing = {way: _Drawing(kept, lanes, case, *way) for way in ways}
    latents = {way: each.warm() for way, each in drawing.items()}
    times: dict[tuple[str, bool], list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        if not lanes.there_is_time(end_s):
            break
        for way, each in drawing.items():
            times[way].append(each.timed())
    lines = []
    for (transport, captured), found in times.items():
        way = transport, captured
        lines.append(
            {
                "transport": transport,
                "captured": captured,
                "equal_bits": torch.equal(latents[way], latents[ways[0]]),
                "step_ms": [round(each, 3) for each in lanes.of_last([step_ms for step_ms, _ in found])],
                "host_ms": [round(each, 3) for each in lanes.of_last([host_ms for _, host_ms in found])],
                **drawing[way].facts(),
            }
        )
    lanes.close()
    return lines


class _Drawing:
    """This rank in a way to take steps."""

    def __init__(
        self, kept: dict[str, Any], lanes: Lanes, case: StepCase, transport: str, captured: bool
    ) -> None:
        self._bench: Bench = kept["bench"]
        self._lanes, self._case = lanes, case
        adapters: dict[Any, Any] = kept["adapters"]
        if captured not in adapters:
            pipeline = self._bench.pipeline()
            adapter: Any = make_adapter(case.family, pipeline, device=lanes.device, mode="agkv")
            graphs = Graphs(graph_device(lanes.device), budget_bytes=GRAPH_BYTES) if captured else None
            if graphs is not None:
                adapter.use_graphs(graphs)
            adapters[captured] = adapter, graphs
        self._adapter, self._graphs = adapters[captured]
        if transport == "alone":
            groups = next(iter(lanes.groups.values()))
            self._exchange = groups.exchange(Lane(ranks=(lanes.place.context.rank,)))
        else:
            self._exchange = lanes.exchange(transport)

    def warm(self) -> torch.Tensor:
        return [self._drawn(2)[0] for _ in range(3)][-1]

    def timed(self) -> tuple[float, float]:
        return self._drawn(1 + self._case.timed_steps)[1:]

    def facts(self) -> Line:
        graphs = self._graphs
        return {} if graphs is None else {"refused": graphs.statistics.num_refused}

    def _drawn(self, num_steps: int) -> tuple[torch.Tensor, float, float]:
        """The latents, and the milliseconds of a step and of its host, the first step left out."""
        split = Split(cp=self._exchange.width)
        state = self._adapter.encode(self._bench.request(self._case, num_steps))
        state = self._adapter.step(state, self._exchange, split)
        self._lanes.meet()
        begin_s = time.perf_counter()
        for _ in range(1, num_steps):
            state = self._adapter.step(state, self._exchange, split)
        host_s = time.perf_counter() - begin_s
        self._lanes.synchronize()
        whole_s = time.perf_counter() - begin_s
        steps = num_steps - 1
        return state.tensors["latents"], 1e3 * whole_s / steps, 1e3 * host_s / steps
