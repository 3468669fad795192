"""What a step costs on one rank and on lanes of ranks that have a GPU each, as it is and captured: one case of
`benchmarks.multi_gpu`, run by every rank."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.noted_exchange import NotedExchange, Notes
from benchmarks.place import Case, Place, Setting
from benchmarks.random_pipeline import make_adapter
from benchmarks.roofline import least_ms
from benchmarks.step_entrants import GRAPH_BYTES, Bench, StepCase, graph_device
from epe.families import FAMILIES
from epe.graphs import Graphs
from epe.messages import Lane, Split
from epe.telemetry.log import configure
from epe.transport.exchange import Exchange
from tests.world import RankContext

Line = dict[str, Any]
ROUNDS = 3
# Drawings before those that count: kernels are chosen in the first, graphs captured in the second.
WARM_DRAWINGS = 2
METHODS = ("agkv", "ulysses", "guidance")


@dataclass(frozen=True, slots=True)
class Way:
    """How a step is divided over a lane: rows (`agkv`), heads (`ulysses`) or guidance branches, of which each half of
    the lane draws one."""

    width: int
    method: str
    captured: bool

    @property
    def split(self) -> Split:
        return Split(cfg=2, cp=self.width // 2) if self.method == "guidance" else Split(cp=self.width)


def ways(world_size: int, *, has_branches: bool) -> Iterator[Way]:
    """One rank first; all lanes of a width work at once."""
    for captured in (False, True):
        yield Way(1, "agkv", captured)
    for width in (2, 3, 4, 8):
        if world_size % width == 0:
            for method in METHODS[: 3 if has_branches and width % 2 == 0 else 2]:
                for captured in (False, True):
                    yield Way(width, method, captured)


def steps(context: RankContext, setting: Setting, case: StepCase, end_s: float) -> list[Line]:
    """A line for each way; their rounds go in turn, and none begins after `end_s` (Unix time). What is known of a way
    is told when it was drawn, and after each round: to be cut off costs no more than the round."""
    configure(json=True, level="warning")
    bench = _Lanes(context, setting, case)
    lines: dict[Way, Line] = {}
    for way in ways(context.world_size, has_branches=bench.has_branches):
        if bench.there_is_time(end_s):
            lines[way] = {**asdict(way), **bench.warmed(way), "step_ms": [], "host_ms": []}
            context.tell(lines[way])
    for _ in range(ROUNDS):
        if bench.there_is_time(end_s):
            _round(bench, lines)
            for line in lines.values():
                context.tell(line)
    bench.close()
    return list(lines.values())


def _round(bench: _Lanes, lines: dict[Way, Line]) -> None:
    for way, line in lines.items():
        step_ms, host_ms = bench.timed(way)
        line["step_ms"].append(round(step_ms, 3))
        line["host_ms"].append(round(host_ms, 3))


class _Lanes:
    """This rank in one case."""

    def __init__(self, context: RankContext, setting: Setting, case: StepCase) -> None:
        self.case = case
        self.place = Place(context, setting, Case(family=case.family), kind="lane steps")
        self.has_branches = FAMILIES[case.family].owns("cfg") and case.family != "zimage"
        self._context, self._world = context, context.world_size
        kept = context.kept
        if "bench" not in kept:
            kept["bench"] = Bench(case.family, device=self.place.device, tiny=setting.tiny)
        self._bench: Bench = kept["bench"]
        self._adapters: dict[tuple[str, bool], tuple[Any, Graphs | None]] = kept.setdefault("adapters", {})
        self._groups = self.place.groups()
        self._expected: torch.Tensor | None = None

    def warmed(self, way: Way) -> Line:
        """Kernels chosen, graphs captured: what it gave, and what it takes beside time."""
        begin_s = time.perf_counter()
        self._reset_peak()
        latents = [self._drawn(way, num_steps=2)[0] for _ in range(WARM_DRAWINGS)][-1]
        if self._expected is None:
            self._expected = latents
        graphs = self._adapter(way)[1]
        line: Line = {
            "equal_bits": torch.equal(latents, self._expected),
            "largest_difference": float((latents.double() - self._expected.double()).abs().max()),
            "warm_up_s": round(time.perf_counter() - begin_s, 2),
            "graphs_mib": 0 if graphs is None else graphs.statistics.num_bytes // 2**20,
            "refused": 0 if graphs is None else graphs.statistics.num_refused,
            **self.place.memory(),
        }
        if way.width > 1:
            return line | self._noted(way)
        return line if way.captured else line | {"least_ms": self._least_ms(way)}

    def _least_ms(self, way: Way) -> float:
        """By the roofline of one rank."""
        adapter, exchange = self._adapter(way)[0], self._groups.exchange(self._lane(1))
        state = adapter.encode(self._bench.request(self.case, 1))
        read_bytes = self._bench.read_bytes(self.case)
        return round(least_ms(lambda: adapter.step(state, exchange, way.split), read_bytes=read_bytes), 3)

    def timed(self, way: Way) -> tuple[float, float]:
        """Milliseconds of a step, and those for which the host was at it."""
        return self._drawn(way, num_steps=1 + self.case.timed_steps)[1:]

    def there_is_time(self, end_s: float) -> bool:
        """Whether the first rank's clock says so, which all believe."""
        left = torch.tensor([end_s - time.time()], device=self.place.device)
        return float(self._everyone().gather(left, (1,) * self._world, dim=0)[0]) > 0

    def close(self) -> None:
        self._groups.close()

    def _drawn(self, way: Way, *, num_steps: int) -> tuple[torch.Tensor, float, float]:
        """The latents, and what all steps but the first took in the mean, which are issued without waiting."""
        adapter, _ = self._adapter(way)
        exchange = self._groups.exchange(self._lane(way.width))
        state = adapter.encode(self._bench.request(self.case, num_steps))
        state = adapter.step(state, exchange, way.split)
        self._meet()
        begin_s = time.perf_counter()
        for _ in range(1, num_steps):
            state = adapter.step(state, exchange, way.split)
        host_s = time.perf_counter() - begin_s
        self._bench.synchronize()
        whole_s = time.perf_counter() - begin_s
        return state.tensors["latents"], 1e3 * whole_s / (num_steps - 1), 1e3 * host_s / (num_steps - 1)

    def _noted(self, way: Way) -> Line:
        """What a step exchanges, and how long its stream is in that; of a captured one too, whose exchanges are not."""
        adapter, _ = self._adapter(way)
        exchange = self._groups.exchange(self._lane(way.width))
        state = adapter.encode(self._bench.request(self.case, 2))
        notes = Notes(self.place.device)
        self._meet()
        adapter.step(state, NotedExchange(exchange, notes), way.split)
        return {
            "exchanges": sum(notes.calls.values()),
            "received_mib": round(sum(notes.received_bytes.values()) / 2**20, 2),
            "exchange_ms": round(1e3 * notes.seconds(), 3),
        }

    def _adapter(self, way: Way) -> tuple[Any, Graphs | None]:
        """One for each method, since what it captures is its own."""
        mode = "ulysses" if way.method == "ulysses" else "agkv"
        key = (mode, way.captured)
        if key not in self._adapters:
            device = self.place.device
            adapter: Any = make_adapter(self.case.family, self._bench.pipeline(), device=device, mode=mode)
            graphs = Graphs(graph_device(device), budget_bytes=GRAPH_BYTES) if way.captured else None
            if graphs is not None:
                adapter.use_graphs(graphs)
            self._adapters[key] = adapter, graphs
        return self._adapters[key]

    def _lane(self, width: int) -> Lane:
        first = self._context.rank // width * width
        return Lane(ranks=tuple(range(first, first + width)))

    def _everyone(self) -> Exchange:
        return self._groups.exchange(self._lane(self._world))

    def _meet(self) -> None:
        """All ranks go on from here at once, with nothing left to compute."""
        self._everyone().gather(torch.zeros(1, device=self.place.device), (1,) * self._world, dim=0)
        self._bench.synchronize()

    def _reset_peak(self) -> None:
        if self.place.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.place.device)
