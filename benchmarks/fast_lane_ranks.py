"""Cases of `benchmarks.fast_lane`, run by every rank, of what is right: connections, bits and ends. A lane has all
ranks; what is timed of one is in `fast_lane_times`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.distributed import PrefixStore

from benchmarks import lane_death
from benchmarks.lane_traffic import SETTLE_S, Memory
from benchmarks.place import LANE_LIMIT_S, Case, Place, Setting
from benchmarks.step_entrants import GRAPH_BYTES, graph_device
from epe.errors import EpeError
from epe.graphs import Graphs
from epe.messages import Lane
from epe.telemetry.log import configure
from epe.transport import symmetric
from epe.transport.exchange import Exchange
from epe.transport.fast import FastExchange
from epe.transport.groups import Groups
from tests.world import RankContext

Line = dict[str, Any]
# Exchanges of one captured pass, as a step has them, one after the other.
REPEATS = 40
# For so long a survivor is left alone.
ALONE_S = 2.0
DTYPES = (torch.bfloat16, torch.float32, torch.uint8, torch.int64)


class Lanes:
    """This rank's lanes over each transport."""

    def __init__(self, context: RankContext, setting: Setting, transports: tuple[str, ...]) -> None:
        self.place = Place(context, setting, Case(family="zimage"), kind="fast lane")
        self.device = self.place.device
        self.world = context.world_size
        self.groups: dict[str, Groups] = {
            name: Groups(
                PrefixStore(name, context.store),
                epoch=0,
                rank=context.rank,
                device=self.device,
                backend=name,  # type: ignore[arg-type]
                timeout_s=LANE_LIMIT_S,
            )
            for name in transports
        }

    def exchange(self, transport: str, *, incarnation: int = 0, turned: bool = False) -> Exchange:
        ranks = tuple(range(self.world))
        lane = Lane(ranks=ranks[::-1] if turned else ranks, incarnation=incarnation)
        return self.groups[transport].exchange(lane)

    def meet(self) -> None:
        """All go on from here at once, with nothing left to compute."""
        exchange = self.exchange(next(iter(self.groups)))
        exchange.gather(torch.zeros(1, device=self.device), (1,) * self.world, dim=0)
        self.synchronize()

    def there_is_time(self, end_s: float) -> bool:
        """Whether the first rank's clock says so, which all believe."""
        left = torch.tensor([end_s - time.time()], device=self.device)
        return float(self.exchange(next(iter(self.groups))).broadcast(left, source=0)) > 0

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def of_last(self, values: list[float]) -> list[float]:
        """The least of what all ranks have: that of the one that began last, which has waited for nobody."""
        own = torch.tensor(values, dtype=torch.float64, device=self.device)
        everybody = self.exchange(next(iter(self.groups))).gather(own, (len(values),) * self.world, dim=0)
        return everybody.view(self.world, -1).amin(dim=0).tolist()

    def close(self) -> None:
        for groups in self.groups.values():
            groups.close()


def connect(context: RankContext, setting: Setting) -> Line:
    """Connecting a lane, again after it was dropped, in the other order, and when one rank has mapped more before."""
    configure(json=True, level="info")
    lanes = Lanes(context, setting, (setting.backend,))
    memory, groups = Memory(lanes.device), lanes.groups[setting.backend]
    took_s, took_mib, closing_s, is_fast = [], [], [], []
    for incarnation in range(3):
        if incarnation == 2 and context.rank == 0 and setting.backend == "fast":
            store = PrefixStore("ahead", context.store)
            symmetric._mapping.mapped(
                symmetric.torch_memory(1, lanes.device),
                symmetric.Members(store, 0, 1),
                number=0,
                check_wanted=lambda: None,
            )
        begin_s = time.perf_counter()
        exchange = lanes.exchange(setting.backend, incarnation=incarnation)
        took_s.append(round(time.perf_counter() - begin_s, 3))
        took_mib.append(memory.more_mib())
        is_fast.append(isinstance(exchange, FastExchange))
        whole = exchange.gather(torch.ones(1000, device=lanes.device), (1000,) * lanes.world, dim=0)
        assert float(whole.sum()) == 1000 * lanes.world
        if incarnation < 2:
            begin_s = time.perf_counter()
            groups.drop(Lane(ranks=tuple(range(lanes.world)), incarnation=incarnation))
            closing_s.append(round(time.perf_counter() - begin_s, 4))
            time.sleep(SETTLE_S)
    turned = lanes.exchange(setting.backend, turned=True)
    line = {
        "connect_s": took_s,
        "left_mib": took_mib,
        "close_s": closing_s,
        "is_fast": [*is_fast, isinstance(turned, FastExchange)],
        "second_lane_mib": memory.more_mib(),
        "held_mib": round(turned.wires.num_bytes / 2**20, 1) if isinstance(turned, FastExchange) else 0,
    }
    lanes.close()
    return line


def bits(context: RankContext, setting: Setting, transports: tuple[str, ...]) -> Line:
    """Whether all transports give the same for random bytes: all kinds of calls, types and sizes, as they are and
    captured, on two lanes in turn."""
    configure(json=True, level="warning")
    lanes = Lanes(context, setting, transports)
    seen: dict[str, list[torch.Tensor]] = {}
    for name in transports:
        graphs = Graphs(graph_device(lanes.device), budget_bytes=GRAPH_BYTES)
        generator = torch.Generator(lanes.device).manual_seed(context.rank)
        seen[name] = []
        for turn, dtype in product(range(8), DTYPES):
            exchange = lanes.exchange(name, turned=turn % 2 == 1)
            sizes = tuple(3 + 1021 * position for position in range(lanes.world))
            random = partial(torch.randint, 0, 100, generator=generator, device=lanes.device)
            args = random((sizes[exchange.position], 24, 40)).to(dtype), random((lanes.world, 4099)).to(dtype)
            seen[name] += graphs.run(_everything, exchange, (args, sizes), {})
        lanes.synchronize()
        replayed = graphs.statistics.num_replayed
    first, *others = seen.values()
    same = all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    lanes.close()
    return {"equal_bits": same, "tensors": len(first), "replayed": replayed, "transports": list(transports)}


def _everything(exchange: Exchange, args: tuple[Any, ...], _: dict[str, Any]) -> list[torch.Tensor]:
    (part, rows), sizes = args
    whole = exchange.gather(part + part, sizes, dim=0)
    odd = [rows[peer, : 4000 + 7 * exchange.position] for peer in range(exchange.width)]
    shapes: list[tuple[int, ...]] = [(4000 + 7 * peer,) for peer in range(exchange.width)]
    traded = exchange.all_to_all(odd, shapes)
    told = [exchange.broadcast(rows, source=source) for source in range(exchange.width)]
    return [whole, *traded, *told, exchange.gather(whole, (len(whole),) * exchange.width, dim=0)]


def gathering(lanes: Lanes, transport: str, captured: bool) -> Callable[[torch.Tensor], Any]:
    exchange = lanes.exchange(transport)

    def work(lane: Exchange, args: tuple[Any, ...], _: dict[str, Any]) -> torch.Tensor:
        part, sizes = args[0], (args[0].numel(),) * lane.width
        for _ in range(REPEATS):
            whole = lane.gather(part, sizes, dim=0)
        return whole[:1]

    if not captured:
        return lambda part: work(exchange, (part,), {})
    graphs = Graphs(graph_device(lanes.device), budget_bytes=GRAPH_BYTES)
    return lambda part: graphs.run(work, exchange, (part,), {})


def death(context: RankContext, setting: Setting, captured: bool) -> Line | None:
    """As `benchmarks.lane_death`, with gathers by themselves or in a captured pass."""
    configure(json=True, level="warning")
    lanes = Lanes(context, setting, (setting.backend,))
    exchange = lanes.exchange(setting.backend)
    part = torch.zeros(lane_death.PART_BYTES // 2, dtype=torch.bfloat16, device=lanes.device)
    gather = gathering(lanes, setting.backend, captured)

    def exchange_for(seconds: float) -> None:
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            gather(part)
            lanes.synchronize()
            exchange.check()

    if context.rank == lane_death.VICTIM:
        context.store.set("pid", str(os.getpid()))
        exchange_for(lane_death.TOGETHER_S)
        os.kill(os.getpid(), signal.SIGKILL)
    pid = int(context.store.get("pid"))
    thread = _Waiting(exchange_for)
    died_s = lane_death.death_of(pid)
    thread.join(ALONE_S)
    by_itself = not thread.is_alive()
    begin_s = time.perf_counter()
    lanes.groups[setting.backend].drop(Lane(ranks=tuple(range(lanes.world))))
    closing_s = time.perf_counter() - begin_s
    thread.join(lane_death.FREED_S)
    freed = not thread.is_alive()
    return {
        "is_fast": isinstance(exchange, FastExchange),
        "by_itself_s": round(thread.end_s - died_s, 3) if by_itself else None,
        "closing_s": round(closing_s, 4),
        "freed": freed,
        "freed_s": round(thread.end_s - begin_s, 4) if freed else None,
        "said": thread.said,
        "device_works": freed and lane_death.device_works(lanes.device),
    }


class _Waiting(threading.Thread):
    """Exchanges until that fails, as a device thread does."""

    def __init__(self, exchange_for: Callable[[float], None]) -> None:
        super().__init__(daemon=True)
        self.end_s, self.said = 0.0, ""
        self._exchange_for = exchange_for
        self.start()

    def run(self) -> None:
        try:
            self._exchange_for(1e9)
        except (EpeError, RuntimeError) as error:
            self.said = f"{type(error).__name__}: {error}"[:300]
        self.end_s = time.perf_counter()
