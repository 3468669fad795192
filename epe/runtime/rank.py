"""One rank: its model, its device thread and its worker actor."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryFile
from typing import Any

import torch
from torch.distributed import Store

from epe.actors.core import ActorSystem
from epe.actors.directory import Directory, worker_name
from epe.actors.worker import Ending, Loaded, Worker
from epe.config.demo import model_folder
from epe.config.gpus import check_gpus, check_without_own_gpus
from epe.config.stage import Stage
from epe.execution.device import ThreadDevice
from epe.execution.faults import with_faults
from epe.execution.memory import check_room, graph_bytes, memory_for, meter_for, usable_bytes
from epe.execution.run import Lanes, SoloLanes
from epe.graphs import CudaGraphs, Graphs
from epe.messages import Palette, RankReady, Stop
from epe.models.catalog import load_adapter
from epe.models.contract import Adapter
from epe.models.loading import Loading
from epe.parallel import ONE_PLANE, Plane
from epe.parallel.kernels import attention_kernels, problem_with_kernels
from epe.parallel.products import keep_products_whole
from epe.runtime.agreement import check_same_settings
from epe.runtime.cost_file import cache_folder
from epe.runtime.exactness import check_kernels, widths_to_leave_out
from epe.runtime.fingerprint import fingerprint
from epe.runtime.gpus import (
    CPU,
    device_name,
    each_has_its_gpu,
    num_gpus,
    pick_device,
    place_of,
    warn_of_sharing,
)
from epe.runtime.palette import palette_of
from epe.runtime.weights import weights_digest
from epe.telemetry.log import get_logger
from epe.transport.groups import Backend, Groups, aligned_lanes

log = get_logger("runtime")

# Torch's variable for the folder of what it has compiled.
COMPILED_CODE = "TORCHINDUCTOR_CACHE_DIR"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "auto": None}


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a rank sits in its world. `store` is None for a world of one. `life` counts the processes that this rank
    has had: one of 1 or more comes back into a world that went on."""

    rank: int
    world_size: int
    device_index: int
    store: Store | None = None
    epoch: int = 0
    life: int = 0


class Rank:
    """A rank of a world. `stopped_by` is completed when it shall end, which may be while it loads."""

    def __init__(self, system: ActorSystem, *, seat: Seat, directory: Directory) -> None:
        self.system = system
        self.seat = seat
        self.stopped_by: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._device: ThreadDevice | None = None
        self._lanes: Lanes | None = None
        self._worker = system.spawn(
            worker_name(seat.rank),
            lambda: Worker(
                seat.rank, directory=directory, stopped_by=self.stopped_by, clock=time.perf_counter
            ),
        )

    async def load(
        self, stage: Stage, *, fits_palette: bool = False, loaded: Callable[[], None] = lambda: None
    ) -> bool:
        """Load the model, build the lanes that are known, and report to the planner; False if the rank is stopped
        before that is done. With `fits_palette` it also finds out what the latents look like. `loaded` is called when
        all is there, before anybody hears of it."""
        begin_s = time.perf_counter()
        target = pick_device(stage.device, index=self.seat.device_index)
        # Before they are loaded: what is put there meanwhile is another set.
        folder = model_folder(stage.factory_args.model_path)
        weights = await asyncio.to_thread(weights_digest, folder)
        equipment = await self._unless_stopped(
            partial(load, self.seat, target=target, stage=stage, fits_palette=fits_palette)
        )
        if equipment is None:
            return False
        self._lanes, graphs = equipment.lanes, equipment.graphs
        limit_bytes = memory_limit_bytes(stage)
        meter = meter_for(target, limit_bytes=limit_bytes)
        budget_bytes = 0 if graphs is None else graphs.budget_bytes
        memory_bytes = usable_bytes(target, limit_bytes=limit_bytes, graph_bytes=budget_bytes)
        resident_bytes = meter.resident_bytes()
        check_room(memory_bytes, resident_bytes=resident_bytes, graph_bytes=budget_bytes)
        self._device = ThreadDevice(
            equipment.adapter,
            self._lanes,
            rank=self.seat.rank,
            device=target,
            meter=meter,
            graphs=graphs,
            decodes_in_bands=stage.decodes_in_bands,
        )
        ready = RankReady(
            rank=self.seat.rank,
            device=device_name(target),
            fingerprint=await asyncio.to_thread(
                fingerprint, stage, device=device_name(target), world_size=self.seat.world_size
            ),
            load_s=time.perf_counter() - begin_s,
            weights=weights,
            memory_bytes=memory_bytes,
            resident_bytes=resident_bytes,
            unlike_widths=equipment.unlike_widths,
            attention=await asyncio.to_thread(_attention_of, equipment.adapter, target, stage),
        )
        loaded()
        self._worker.tell(Loaded(self._device, ready, equipment.palette))
        return True

    async def _unless_stopped(self, work: Callable[[], Equipment]) -> Equipment | None:
        """What `work` gives in a thread; None if the rank is stopped before, and nobody waits for the thread."""
        loading = asyncio.ensure_future(asyncio.to_thread(work))
        ends: tuple[asyncio.Future[Any], ...] = (loading, self.stopped_by)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return loading.result() if loading.done() else None
        finally:
            loading.cancel()

    def fail(self, reason: str) -> None:
        """End this rank out of order, so that it is started again."""
        self._worker.tell(Stop(reason=reason, orderly=False))

    async def close(self) -> None:
        """End the worker and the device thread, and close the lanes."""
        await self.system.stop(worker_name(self.seat.rank))
        failed = self.stopped_by.done() and not self.stopped_by.result().orderly
        if self._device is not None and not failed:  # A device that has failed may hang.
            await asyncio.to_thread(self._device.close)
        if isinstance(self._lanes, Groups):
            self._lanes.close()


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """What a rank works with; the widths that it must be spared; what the latents look like, where somebody asked.
    `graphs` captures its passes; None: nothing does."""

    adapter: Adapter
    lanes: Lanes
    graphs: Graphs | None
    unlike_widths: tuple[int, ...]
    palette: Palette | None


def load(seat: Seat, *, target: torch.device, stage: Stage, fits_palette: bool = False) -> Equipment:
    """Load the model and build the lanes that are known, beside all other ranks of the world. Blocking: runs in a
    thread, so that the rank answers meanwhile. Raises `BadSetting` for what the GPUs cannot do, and what
    `check_same_settings`, `adapter_of`, `owns_gpu`, `check_kernels` and the lanes raise."""
    owns = _take(target, seat, stage)
    graphs = graphs_for(stage, target) if owns else None
    plane = Plane(seat.rank // stage.parallelism.cp.world_size, stage.num_planes)
    prompt_bytes = stage.prompts.memory_mib * 2**20
    with memory_for("the model", advice="end what else uses it, or take a device with more"):
        adapter = adapter_of(stage, target, plane=plane, graphs=graphs, prompt_bytes=prompt_bytes)
    palette = palette_of(adapter) if fits_palette else None
    # A CPU is known to have none.
    unlike = () if target.type == "cpu" else widths_to_leave_out(adapter, stage)
    if stage.numerics == "fast" and seat.store is not None:
        check_kernels(adapter, rank=seat.rank, world_size=seat.world_size, store=seat.store)
    adapter = with_faults(adapter, stage.faults, rank=seat.rank, life=seat.life)
    lanes = _lanes_of(seat, stage, target, backend=lane_backend(stage, owns=owns))
    return Equipment(adapter=adapter, lanes=lanes, graphs=graphs, unlike_widths=unlike, palette=palette)


def _take(target: torch.device, seat: Seat, stage: Stage) -> bool:
    """Set this process, and this thread, up for the device; whether each rank has a GPU to itself. Raises `BadSetting`
    where the stage asks for what the GPUs cannot do, or for other things than that of another rank."""
    if target.type == "cuda":
        torch.cuda.set_device(target)  # For libraries that name none.
    elif seat.world_size > 1:
        torch.set_num_threads(1)
    check_gpus(stage, num_gpus=num_gpus(), num_ranks=1)
    if seat.store is not None:
        check_same_settings(stage, rank=seat.rank, world_size=seat.world_size, store=seat.store)
    owns = owns_gpu(seat, target)
    if not owns:
        check_without_own_gpus(stage, because="not each rank has one to itself")
        warn_of_sharing(target)
    return owns


def _lanes_of(seat: Seat, stage: Stage, target: torch.device, *, backend: Backend) -> Lanes:
    """Those that are known are built, with all their ranks; in a later life they are there, and wait to be leased."""
    if seat.store is None:
        return SoloLanes()
    groups = Groups(seat.store, epoch=seat.epoch, rank=seat.rank, device=target, backend=backend)
    widths = stage.parallelism.scheduler.allowed_lane_widths
    lanes = aligned_lanes(seat.world_size, widths, num_planes=stage.num_planes)
    if seat.life == 0:
        groups.prebuild(lanes)
    else:
        groups.keep(lanes)
    return groups


def adapter_of(
    stage: Stage,
    target: torch.device,
    *,
    plane: Plane = ONE_PLANE,
    graphs: Graphs | None = None,
    prompt_bytes: int = 0,
) -> Adapter:
    """The model of a stage on a device, whose products are set up for it. Raises what `load_adapter` raises."""
    if target.type == "cuda":
        keep_products_whole()
    if stage.numerics == "fast":
        keep_compiled_code(os.environ)
    loading = Loading(
        device=target,
        dtype=DTYPES[stage.dtype],
        cfg_parallel_degree=stage.parallelism.model.cfg_parallel_degree,
        attention_mode=stage.parallelism.cp.attention_mode,
        ulysses_degree=stage.parallelism.cp.ulysses_degree,
        plane=plane,
        graphs=graphs,
        prompt_bytes=prompt_bytes,
        compiled=stage.numerics == "fast",
    )
    return load_adapter(stage.factory, model_folder(stage.factory_args.model_path), loading)


def keep_compiled_code(env: MutableMapping[str, str]) -> None:
    """Have torch's compiler find after a restart what it compiled once. A user's own setting goes before; where the
    user's folder cannot be written, it stays with torch's temporary one."""
    if COMPILED_CODE in env:
        return
    try:
        folder = cache_folder(env) / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            env[COMPILED_CODE] = str(folder)
    except OSError as error:
        log.warning("code.not_kept", reason=f"{error}; a restart may have to compile again")


def _attention_of(adapter: Adapter, target: torch.device, stage: Stage) -> str:
    """The kernels that attention runs on; a warning where better ones are expected of the device."""
    dtype = Loading(device=target, dtype=DTYPES[stage.dtype]).weights_dtype
    kernels = attention_kernels(adapter.pipeline.transformer.config, device=target, dtype=dtype)
    capability = torch.cuda.get_device_capability(target) if target.type == "cuda" else None
    log.info("attention.runs_on", kernels=kernels)
    if problem := problem_with_kernels(kernels, capability=capability):
        log.warning("attention.could_be_faster", kernels=kernels, reason=problem)
    return kernels


def owns_gpu(seat: Seat, target: torch.device) -> bool:
    """Whether this rank, and with it each other one of its world, has a GPU to itself. Blocks until all have said on
    which device they are; raises what `each_has_its_gpu` raises."""
    if seat.store is None:
        return place_of(target) != CPU
    return each_has_its_gpu(place_of(target), rank=seat.rank, world_size=seat.world_size, store=seat.store)


def lane_backend(stage: Stage, *, owns: bool) -> Backend:
    """How ranks exchange tensors: NCCL needs a GPU for each."""
    if not owns:
        return "gloo"
    return "fast" if stage.parallelism.cp.transport == "fast" else "nccl"


def graphs_for(stage: Stage, target: torch.device) -> Graphs | None:
    """What captures the forward passes of a rank that has a GPU to itself, where the stage file lets it."""
    if not stage.capture.enabled:
        return None
    return Graphs(CudaGraphs(target), budget_bytes=graph_bytes(target, memory_mib=stage.capture.memory_mib))


def memory_limit_bytes(stage: Stage) -> int | None:
    """What the stage file lets a rank use, if it says so."""
    limit_mib = stage.parallelism.scheduler.rank_memory_mib
    return None if limit_mib is None else limit_mib * 2**20
