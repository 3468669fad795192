"""A rank is killed while the lane of all exchanges: what the others see, and what frees them. A case of
`benchmarks.multi_gpu`, run by every rank."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.place import Case, Place, Setting
from epe.errors import EpeError
from epe.messages import Lane
from epe.transport.exchange import Exchange
from tests.world import RankContext

Line = dict[str, Any]
VICTIM = 1
PART_BYTES = 16 << 20
# For so long both exchange, and for so long the survivors are left alone with it.
TOGETHER_S, ALONE_S, FREED_S = 1.0, 6.0, 10.0


def death(context: RankContext, setting: Setting) -> Line | None:
    """Seconds from the death until a survivor's thread came back by itself (None: not within `ALONE_S`), and what its
    lane's closing took."""
    place = Place(context, setting, Case(family="zimage"), kind="death")
    groups = place.groups()
    lane = Lane(ranks=tuple(range(context.world_size)))
    exchange = groups.exchange(lane)
    if context.rank == VICTIM:
        context.store.set("pid", str(os.getpid()))
        _exchange_for(TOGETHER_S, exchange, place.device)
        os.kill(os.getpid(), signal.SIGKILL)
    pid = int(context.store.get("pid"))
    thread = _Exchanging(exchange, place.device)
    died_s = death_of(pid)
    thread.join(ALONE_S)
    line: Line = {
        "left_alone_s": ALONE_S,
        "by_itself_s": None if thread.is_alive() else round(thread.end_s - died_s, 3),
        "said": thread.said,
    }
    begin_s = time.perf_counter()
    groups.drop(lane)
    line["closing_s"] = round(time.perf_counter() - begin_s, 4)
    thread.join(FREED_S)
    line["freed"] = not thread.is_alive()
    if line["freed"]:
        line["freed_s"] = round(thread.end_s - begin_s, 4)
        line["said"] = thread.said
        line["device_works"] = device_works(place.device)
    return line


class _Exchanging(threading.Thread):
    """Exchanges until that fails, as a device thread does."""

    def __init__(self, exchange: Exchange, device: torch.device) -> None:
        super().__init__(daemon=True)
        self.end_s, self.said = 0.0, ""
        self._exchange, self._device = exchange, device
        self.start()

    def run(self) -> None:
        try:
            _exchange_for(1e9, self._exchange, self._device)
        except (EpeError, RuntimeError) as error:
            self.said = f"{type(error).__name__}: {error}"[:300]
        self.end_s = time.perf_counter()


def _exchange_for(seconds: float, exchange: Exchange, device: torch.device) -> None:
    part = torch.zeros(PART_BYTES // 2, dtype=torch.bfloat16, device=device)
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        exchange.gather(part, (part.numel(),) * exchange.width, dim=0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        exchange.check()


def death_of(pid: int) -> float:
    """When the process was seen dead: its parent has not buried it yet."""
    stat = Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        time.sleep(0.002)
    return time.perf_counter()


def device_works(device: torch.device) -> bool:
    ones = torch.ones(64, 64, device=device)
    return bool(((ones @ ones) == 64).all())
