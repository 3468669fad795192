"""The service that `benchmarks.http_load` measures: a process with the leader as `epe serve` starts it, and ranks that
only take their time.

    python benchmarks/http_leader.py --slow 1    # says its port; answers each line of its input with what it took since
                                                 # the line `begin`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import sys
import time
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.http_client import LARGE, SMALL
from epe.actors.core import ActorSystem
from epe.actors.directory import worker_name
from epe.actors.worker import Loaded, Worker
from epe.config.load import build_stage
from epe.messages import Lease, RankReady, Stage
from epe.runtime.garbage import settle_garbage
from epe.runtime.leader import Leader
from epe.runtime.service import service_directory
from epe.server.app import make_app, serve
from epe.server.settings import http_settings
from epe.simulator.device import SimulatedDevice, SimulatedWorld
from epe.telemetry.log import configure
from epe.transport.memory import MemoryNetwork

NUM_RANKS = 16
# Beside the small size this one is measured at the start; the costs of the large one follow from both.
MIDDLE = 512
LAG_S = 0.005
# The seconds of a task on one rank: as much for each and as much for each pixel; wider lanes gain as the square root.
# A small picture of four steps takes 20 ms of a rank.
SECONDS = {
    Stage.ENCODE: (0.002, 0.0),
    Stage.DENOISE: (0.004, 2e-9),
    Stage.DECODE: (0.002, 2e-9),
}
STAGE = {
    "name": "image",
    "factory": "zimage",
    "gpu": list(range(NUM_RANKS)),
    "device": "cpu",
    "parallelism": {
        "scheduler": {
            "allowed_lane_widths": [1, 2, 4, 8],
            "warmup_resolutions": [SMALL, MIDDLE],
            "warmup_steps": 3,
            "max_pending_requests": 20_000,
            "cost_file": "none",
        }
    },
    "factory_args": {
        "model_path": "demo",
        "default_width": SMALL,
        "default_height": SMALL,
        "num_steps": 4,
        "guidance_scale": 0.0,
    },
}


class SimulatedService:
    """Leader, ranks and HTTP on one loop; after the warm-up work takes `slow` times as long as `SECONDS` say."""

    def __init__(self, *, slow: float) -> None:
        self.slow = slow
        self.stage = build_stage(STAGE)
        self.directory = service_directory(NUM_RANKS)
        self.network = MemoryNetwork()
        self.world = SimulatedWorld(self._seconds, pixels=self._pixels)
        self.running = asyncio.Event()
        noise = np.random.default_rng(1).integers(0, 8, (1, LARGE, LARGE, 3), dtype=np.uint8)
        self._drawn = {side: noise[:, :side, :side] for side in (SMALL, MIDDLE, LARGE)}

    def _seconds(self, lease: Lease) -> float:
        each_s, pixel_s = SECONDS[lease.stage]
        task_s = each_s + pixel_s * lease.request.width * lease.request.height
        times = self.slow if self.running.is_set() else 1.0
        return times * task_s * max(1, lease.num_steps) / lease.lane.width**0.5

    def _pixels(self, lease: Lease) -> np.ndarray:
        return self._drawn[lease.request.width]

    async def start(self) -> int:
        """Warm up and serve; the port."""
        leader = Leader(
            self._join("leader"),
            directory=self.directory,
            stage=self.stage,
            warm_up=True,
            survives=True,
            phase_changed=lambda phase, reason: self.running.set() if phase == "running" else None,
        )
        for rank in range(NUM_RANKS):
            self._start_rank(rank)
        await self.running.wait()
        sock = socket.create_server(("127.0.0.1", 0))
        app = make_app(
            leader.desk,
            family=self.stage.family,
            name=self.stage.name,
            defaults=self.stage.request_defaults,
            settings=http_settings(self.stage, port=sock.getsockname()[1]),
        )
        await serve(app, sock)
        settle_garbage()
        return int(sock.getsockname()[1])

    def _join(self, node: str) -> ActorSystem:
        system = ActorSystem(node)
        system.attach(self.network.join(node, system))
        return system

    def _start_rank(self, rank: int) -> None:
        ending = asyncio.get_running_loop().create_future()
        worker = self._join(f"r{rank}").spawn(
            worker_name(rank), lambda: Worker(rank, directory=self.directory, stopped_by=ending)
        )
        ready = RankReady(rank=rank, device="cpu", fingerprint="simulated", load_s=0.0)
        worker.tell(Loaded(SimulatedDevice(rank, self.world), ready))


class Meter:
    """What a span of time has cost the loop: its lag at every `LAG_S`, the processor seconds of its thread."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.lags_s: list[float] = []
        self.thread_s, self.process_s, self.begin_s = (
            time.thread_time(),
            time.process_time(),
            time.monotonic(),
        )

    def end(self) -> dict[str, object]:
        return {
            "seconds": time.monotonic() - self.begin_s,
            "loop_s": time.thread_time() - self.thread_s,
            "process_s": time.process_time() - self.process_s,
            "lags_s": self.lags_s,
            "rss_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(),
        }

    async def measure(self) -> None:
        while True:
            due_s = time.monotonic() + LAG_S
            await asyncio.sleep(LAG_S)
            self.lags_s.append(time.monotonic() - due_s)


async def main_async(slow: float) -> None:
    """Serve until the input ends."""
    _say({"port": await SimulatedService(slow=slow).start()})
    meter = Meter()
    measuring = asyncio.create_task(meter.measure())
    while line := await asyncio.to_thread(sys.stdin.readline):
        _say(meter.end())
        if line.strip() == "begin":
            meter.begin()
    measuring.cancel()
    os._exit(0)


def _say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", type=float, default=1.0)
    parser.add_argument("--log-level", default="info")
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    configure(level=args.log_level, node="leader")
    uvloop.run(main_async(args.slow))


if __name__ == "__main__":
    main()
