"""One rank: its model, its device thread and its worker actor."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from torch.distributed import Store

from epe.actors.core import ActorSystem
from epe.actors.directory import Directory, worker_name
from epe.actors.worker import Ending, Worker
from epe.config.demo import model_folder
from epe.config.stage import Stage
from epe.errors import StartFailed
from epe.execution.device import ThreadDevice
from epe.execution.run import Lanes, SoloLanes
from epe.messages import Lane, RankReady
from epe.models.catalog import load_adapter
from epe.models.contract import Adapter
from epe.transport.groups import Groups, aligned_lanes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "auto": None}


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a rank sits in its world. `store` is None for a world of one."""

    rank: int
    world_size: int
    device_index: int
    store: Store | None = None
    epoch: int = 0


class Rank:
    """A rank at work. `stopped_by` is completed when it shall end."""

    def __init__(self, system: ActorSystem, *, seat: Seat, device: ThreadDevice, lanes: Lanes) -> None:
        self.system = system
        self.seat = seat
        self.device = device
        self.lanes = lanes
        self.stopped_by: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(cls, system: ActorSystem, *, seat: Seat, directory: Directory, stage: Stage) -> Rank:
        """Load the model, build the lanes that are known, and report to the planner."""
        begin_s = time.perf_counter()
        target = pick_device(stage.device, index=seat.device_index)
        adapter, lanes = await asyncio.to_thread(_load, seat, target, stage)
        rank = cls(system, seat=seat, device=_device(adapter, lanes, seat, target), lanes=lanes)
        ready = RankReady(
            rank=seat.rank,
            device=device_name(target),
            fingerprint=fingerprint(stage, target),
            load_s=time.perf_counter() - begin_s,
        )
        system.spawn(
            worker_name(seat.rank),
            lambda: Worker(
                seat.rank,
                directory=directory,
                device=rank.device,
                ready=ready,
                stopped_by=rank.stopped_by,
            ),
        )
        return rank

    async def close(self) -> None:
        """End the worker and the device thread, and close the lanes."""
        await self.system.stop(worker_name(self.seat.rank))
        await asyncio.to_thread(self.device.close)
        if isinstance(self.lanes, Groups):
            self.lanes.close()


def _device(adapter: Adapter, lanes: Lanes, seat: Seat, target: torch.device) -> ThreadDevice:
    return ThreadDevice(adapter, lanes, rank=seat.rank, device=target)


def _load(seat: Seat, target: torch.device, stage: Stage) -> tuple[Adapter, Lanes]:
    """Blocking: runs in a thread, so that the rank answers while it loads."""
    # On a CPU the bits depend on the number of threads, and so would the picture on the machine.
    if target.type == "cpu":
        torch.set_num_threads(1)
    adapter = load_adapter(
        stage.factory,
        model_folder(stage.factory_args.model_path),
        device=target,
        dtype=DTYPES[stage.dtype],
        cfg_parallel_degree=stage.parallelism.model.cfg_parallel_degree,
        attention_mode=stage.parallelism.cp.attention_mode,
        ulysses_degree=stage.parallelism.cp.ulysses_degree,
    )
    return adapter, _lanes(seat, target, stage.parallelism.scheduler.allowed_lane_widths)


def _lanes(seat: Seat, target: torch.device, widths: tuple[int, ...]) -> Lanes:
    if seat.store is None:
        return SoloLanes()
    groups = Groups(
        seat.store,
        epoch=seat.epoch,
        rank=seat.rank,
        device=target,
        backend="nccl" if owns_its_gpu(target, seat.world_size) else "gloo",
    )
    groups.prebuild(tuple(lane for lane in aligned_lanes(seat.world_size, widths) if _mine(lane, seat)))
    return groups


def _mine(lane: Lane, seat: Seat) -> bool:
    return lane.width > 1 and seat.rank in lane.ranks


def pick_device(wanted: str, *, index: int) -> torch.device:
    """`cuda` or `cpu` as the stage file wants it; `auto` takes a GPU where there is one. Ranks beyond the
    number of GPUs share them."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise StartFailed("device cuda was asked for, but torch sees no GPU; use device: cpu or auto")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", index % torch.cuda.device_count())


def owns_its_gpu(target: torch.device, world_size: int) -> bool:
    """NCCL needs a GPU for each rank."""
    return target.type == "cuda" and world_size <= int(torch.cuda.device_count())


def device_name(target: torch.device) -> str:
    """For people: `cpu`, or the name of the GPU."""
    return torch.cuda.get_device_name(target) if target.type == "cuda" else "cpu"


def fingerprint(stage: Stage, target: torch.device) -> str:
    """Names everything that measured costs depend on."""
    parts = (
        stage.factory,
        Path(stage.factory_args.model_path).name,
        stage.dtype,
        device_name(target),
        f"torch-{torch.__version__}",
        f"diffusers-{version('diffusers')}",
        f"cfg-{stage.parallelism.model.cfg_parallel_degree}",
        f"{stage.parallelism.cp.attention_mode}-{stage.parallelism.cp.ulysses_degree or 'all'}",
    )
    return "/".join(parts)
