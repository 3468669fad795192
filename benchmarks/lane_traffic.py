"""What connecting the ranks of a lane takes, what an exchange and a lane change take, and how fast states move: cases
of `benchmarks.multi_gpu`, run by every rank. Lanes have all ranks; states move between the first two."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.place import Case, Place, Setting, advance
from epe.execution.copying import Copying
from epe.messages import Fetch, Lane
from epe.models.contract import State
from epe.transport.exchange import Exchange
from epe.transport.link import Parcel
from epe.transport.rpc import RpcLink
from tests.world import RankContext

Line = dict[str, Any]
PAIR = (0, 1)
INCARNATIONS = 4
# What NCCL gives back in threads of its own is back by then.
SETTLE_S = 1.0
PARTS_KIB = (4, 64, 1024, 4096, 16384, 65536)
_LARGE_BYTES = 64 << 20
REPEATS = 40
ROUNDS = 5
MOVES = 9
NODES = ("leader", "r0")
# Families whose states are moved, at their first size; of a video also its scheduler's history.
MOVED = ("zimage", "flux1", "wan")


def groups(context: RankContext, setting: Setting) -> Line:
    """Connecting a lane, closing it, and connecting it again, as after an error; and what each leaves in memory."""
    place = Place(context, setting, Case(family="zimage"), kind="groups")
    groups, memory = place.groups(), Memory(place.device)
    everyone = tuple(range(context.world_size))
    connect_s, connect_mib, close_s, close_mib = [], [], [], []
    for incarnation in range(INCARNATIONS):
        lane = Lane(ranks=everyone, incarnation=incarnation)
        connect_s.append(_took(partial(groups.exchange, lane)))
        connect_mib.append(memory.more_mib())
        _gather_s(groups.exchange(lane), place.device, _LARGE_BYTES >> 6 * setting.tiny)
        connect_mib[-1] += memory.more_mib()
        if incarnation < INCARNATIONS - 1:
            close_s.append(_took(partial(groups.drop, lane)))
            time.sleep(SETTLE_S)
            close_mib.append(memory.more_mib())
    other = Lane(ranks=everyone[::-1])
    second_s = _took(partial(groups.exchange, other))
    line = {
        "connect_s": [round(each, 3) for each in connect_s],
        "connect_mib": connect_mib,
        "close_s": [round(each, 4) for each in close_s],
        "close_mib": close_mib,
        "second_lane_s": round(second_s, 3),
        "second_lane_mib": memory.more_mib(),
        **_changes(groups, place.device, Lane(ranks=everyone, incarnation=INCARNATIONS - 1), other),
    }
    groups.close()
    return line


def _changes(groups: Any, device: torch.device, lane: Lane, other: Lane) -> Line:
    """Microseconds: to look a lane up, and of small gathers on one lane and on two in turn."""
    look_up_us = 1e6 * _took(lambda: [groups.exchange(lane) for _ in range(1000)]) / 1000
    part = torch.zeros(1024, device=device)

    def small(*lanes: Lane) -> float:
        def work() -> None:
            for number in range(REPEATS):
                exchange = groups.exchange(lanes[number % len(lanes)])
                exchange.gather(part, (1024,) * exchange.width, dim=0)
            _synchronize(device)

        work()
        return 1e6 * median(_took(work) for _ in range(ROUNDS)) / REPEATS

    return {
        "look_up_us": round(look_up_us, 2),
        "same_lane_us": round(small(lane), 2),
        "lanes_in_turn_us": round(small(lane, other), 2),
    }


def exchanges(context: RankContext, setting: Setting) -> list[Line]:
    """Gathers, back to back: microseconds on the device and at the host, and received bytes a second."""
    place = Place(context, setting, Case(family="zimage"), kind="exchanges")
    groups = place.groups()
    exchange, lines = groups.exchange(Lane(ranks=tuple(range(context.world_size)))), []
    for kib in PARTS_KIB[: 3 if setting.tiny else None]:
        _gather_s(exchange, place.device, kib << 10)
        found = [_gather_s(exchange, place.device, kib << 10) for _ in range(ROUNDS)]
        device_s, host_s = (median(each) for each in zip(*found, strict=True))
        received_bytes = (exchange.width - 1) * (kib << 10)
        lines.append(
            {
                "part_kib": kib,
                "device_us": round(1e6 * device_s, 2),
                "host_us": round(1e6 * host_s, 2),
                "gb_per_s": round(received_bytes / device_s / 1e9, 2),
            }
        )
    groups.close()
    return lines


def _gather_s(exchange: Exchange, device: torch.device, num_bytes: int) -> tuple[float, float]:
    """Seconds of one gather of parts of this size: in all, and until the host had issued it."""
    part = torch.zeros(num_bytes // 2, dtype=torch.bfloat16, device=device)
    sizes = (part.numel(),) * exchange.width
    _synchronize(device)
    begin_s = time.perf_counter()
    for _ in range(REPEATS):
        exchange.gather(part, sizes, dim=0)
    host_s = time.perf_counter() - begin_s
    _synchronize(device)
    return (time.perf_counter() - begin_s) / REPEATS, host_s / REPEATS


def moves(context: RankContext, setting: Setting, family: str) -> Line | None:
    """A state of `family` from the first rank to the second: by the way of a service (host memory, RPC, host memory),
    by its parts, and straight over the lane. Milliseconds at the second rank."""
    if context.rank not in PAIR:
        return None
    place = Place(context, setting, Case(family=family), kind="moves")
    factory = place.factory(shared=False, shallow=True)
    adapter = place.adapter_around(factory.pipeline(factory.weights()))
    state = advance(adapter, adapter.encode(place.request(0, num_steps=4)))
    return asyncio.run(_moves(context, place, adapter, state))


async def _moves(context: RankContext, place: Place, adapter: Any, state: State) -> Line | None:
    holder = _Holder(adapter, state, place.device)
    link = await RpcLink.open(
        holder, store=context.store, epoch=0, node=NODES[context.rank], members=NODES, timeout_s=60.0
    )
    try:
        if context.rank == 0:
            await asyncio.to_thread(context.store.get, "moved")
            line = {"export_ms": await _export_ms(holder)}
        else:
            line = await _fetched(link, place, adapter, state)
            context.store.set("moved", "1")
    finally:
        await link.close()
        holder.copying.close()
    groups = place.groups()
    line |= await asyncio.to_thread(_straight, groups.exchange(Lane(ranks=PAIR)), place.device, state)
    groups.close()
    return line


class _Holder:
    """Answers every ask with its state, as a worker does."""

    def __init__(self, adapter: Any, state: State, device: torch.device) -> None:
        self.copying = Copying(device)
        self._adapter, self._state = adapter, state

    async def answer(self, target: str, sender: str, message: Any) -> Parcel:
        return await self.export()

    async def export(self) -> Parcel:
        header, tensors = await self.copying.run(partial(self._adapter.export_state, self._state))
        return Parcel(header, tensors)

    def deliver(self, target: str, sender: str, message: Any) -> None:
        pass

    def node_down(self, node: str, reason: str) -> None:
        pass


async def _fetched(link: RpcLink, place: Place, adapter: Any, state: State) -> Line:
    whole, travel, enter = [], [], []
    fetch = Fetch(request_id=state.request.id, step=state.step)
    equal_bits = True
    for _ in range(MOVES):
        begin_s = time.perf_counter()
        parcel = await link.ask("worker@leader", "worker@r0", fetch, 60.0)
        arrived_s = time.perf_counter()
        moved = adapter.import_state(state.request, parcel.message, parcel.tensors)
        _synchronize(place.device)
        end_s = time.perf_counter()
        whole.append(end_s - begin_s)
        travel.append(arrived_s - begin_s)
        enter.append(end_s - arrived_s)
        equal_bits &= all(torch.equal(moved.tensors[name], each) for name, each in state.tensors.items())
    num_bytes = sum(tensor.nbytes for tensor in state.tensors.values())
    return {
        "state_mib": round(num_bytes / 2**20, 2),
        "equal_bits": equal_bits,
        "move_ms": _ms(whole),
        "export_and_travel_ms": _ms(travel),
        "import_ms": _ms(enter),
        "gb_per_s": round(num_bytes / median(whole) / 1e9, 3),
    }


async def _export_ms(holder: _Holder) -> list[float]:
    found = []
    for _ in range(MOVES):
        begin_s = time.perf_counter()
        await holder.export()
        found.append(time.perf_counter() - begin_s)
    return _ms(found)


def _straight(exchange: Exchange, device: torch.device, state: State) -> Line:
    """Every tensor of the state from device to device."""
    found = []
    for _ in range(MOVES):
        _synchronize(device)
        begin_s = time.perf_counter()
        for tensor in state.tensors.values():
            if exchange.position == 0:
                exchange.send(tensor, target=1)
            else:
                exchange.receive(tensor, source=0)
        _synchronize(device)
        found.append(time.perf_counter() - begin_s)
    return {"straight_ms": _ms(found)}


class Memory:
    """Of a GPU, by whomever; nothing is known of a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free = self._free_bytes()

    def more_mib(self) -> int:
        """Taken since this was last asked for."""
        before, self._free = self._free, self._free_bytes()
        return (before - self._free) // 2**20

    def _free_bytes(self) -> int:
        if self._device.type == "cpu":
            return 0
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self._device)[0])


def _took(work: Callable[[], Any]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s


def _ms(seconds: list[float]) -> list[float]:
    """The median without the first, the least and the most of these."""
    rest = seconds[1:]
    return [round(1e3 * each, 3) for each in (median(rest), min(rest), max(rest))]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
