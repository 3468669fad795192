"""The embedded async API: the engine inside a program that owns its processes, its loop and its way in.

In one process it draws on one device. In a host that has initialised `torch.distributed`, every process makes
one runtime: the leader's actors live on rank 0, the ranks are the host's. Nothing is started anew when a process
dies, and jobs do not outlive the host: those promises belong to `epe serve`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch.distributed as dist
from torch.distributed import PrefixStore, Store
from torch.distributed.distributed_c10d import _get_default_store

from epe.actors.core import ActorSystem
from epe.actors.desk import Handle, Result, Watcher
from epe.actors.directory import Directory
from epe.config.load import build_stage, load_stage
from epe.config.request import resolve_request
from epe.config.stage import Stage
from epe.errors import BadSetting, StartFailed
from epe.messages import OutputFormat, Request, Status, Stop, Strategy
from epe.runtime.leader import Leader
from epe.runtime.rank import Rank, Seat
from epe.telemetry.log import configure_unless_done
from epe.transport.rpc import RpcLink


class EmbeddedDiffusionRuntime:
    """`async with EmbeddedDiffusionRuntime.from_stage("stage.yaml") as runtime: await runtime.generate("...")`.

    On rank 0 the block is yours, entered when requests are taken; on every other rank it is entered when its model
    is loaded, and left only when rank 0 leaves its own.
    """

    START_TIMEOUT_S = 600.0
    LINK_TIMEOUT_S = 60.0

    def __init__(self, stage: Stage, *, seat: Seat | None = None, warm_up: bool = False) -> None:
        self.stage = stage
        self.seat = seat or host_seat(stage)
        self.warm_up = warm_up
        self._system: ActorSystem | None = None
        self._link: RpcLink | None = None
        self._leader: Leader | None = None
        self._rank: Rank | None = None
        self._opened = asyncio.Event()
        self._failure = ""
        # A plan of FlexCache takes up to a second: beside the host's loop, and one at a time, since several would take
        # turns with it.
        self._planning = ThreadPoolExecutor(1, "planning")

    @classmethod
    def from_stage(cls, stage: str | Path | Mapping[str, object], *, warm_up: bool = False) -> Self:
        """From a stage file, or its content as plain values. Raises `BadSetting`."""
        loaded = build_stage(stage) if isinstance(stage, Mapping) else load_stage(stage)
        return cls(loaded, warm_up=warm_up)

    @property
    def is_leader(self) -> bool:
        """Whether this process takes requests (rank 0)."""
        return self.seat.rank == 0

    async def __aenter__(self) -> Self:
        configure_unless_done(level="warning")
        try:
            async with asyncio.timeout(self.START_TIMEOUT_S):
                await self._start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._leader is not None:
                await self._dismiss()
            elif self._rank is not None and error is None:
                await self._rank.stopped_by
        finally:
            await self._close()

    async def submit(self, request: Request, *, watcher: Watcher | None = None) -> Handle:
        """Hand in a request; `watcher` is called with its progress. Raises `Refused` or `BadRequest`."""
        if self._leader is None:
            raise StartFailed(
                f"rank {self.seat.rank} takes no requests; rank 0 does, inside its `async with`"
            )
        return await self._leader.desk.submit(request, watcher=watcher)

    async def generate(
        self,
        prompt: str,
        *,
        negative_prompt: str | None = None,
        height: int | None = None,
        width: int | None = None,
        num_frames: int | None = None,
        fps: int | None = None,
        num_steps: int | None = None,
        guidance_scale: float | None = None,
        flow_shift: float | None = None,
        seed: int | None = None,
        priority: int | None = None,
        deadline_s: float | None = None,
        cache: Strategy | None = None,
        output_format: OutputFormat = OutputFormat.RAW,
        watcher: Watcher | None = None,
    ) -> Result:
        """Draw one picture or video and wait for it; what is not given comes from the stage. The request is cancelled
        when the caller is. Raises the `EpeError` that ended it."""
        resolve = partial(
            resolve_request,
            self.stage.family,
            prompt=prompt,
            negative_prompt=negative_prompt,
            height=height,
            width=width,
            num_frames=num_frames,
            fps=fps,
            num_steps=num_steps,
            guidance_scale=guidance_scale,
            flow_shift=flow_shift,
            seed=seed,
            priority=priority,
            deadline_s=deadline_s,
            output_format=output_format,
            cache=cache,
            cache_rules=self.stage.cache_rules,
            defaults=self.stage.request_defaults,
        )
        needs_plan = cache is not None or self.stage.cache.default is not None
        loop = asyncio.get_running_loop()
        request = await loop.run_in_executor(self._planning, resolve) if needs_plan else resolve()
        handle = await self.submit(request, watcher=watcher)
        try:
            return await handle.result()
        except asyncio.CancelledError:
            handle.cancel()
            raise

    async def status(self) -> Status:
        """The world as the planner sees it (rank 0 only)."""
        if self._leader is None:
            raise StartFailed("only rank 0, inside its `async with`, knows the status")
        return await self._leader.desk.status()

    # --- life ---

    async def _start(self) -> None:
        seat = self.seat
        directory = directory_of(seat.world_size)
        system = self._system = ActorSystem(directory.nodes[seat.rank])
        self._opened, self._failure = asyncio.Event(), ""
        if seat.store is not None:
            self._link = await RpcLink.open(
                system,
                store=seat.store,
                epoch=seat.epoch,
                node=directory.nodes[seat.rank],
                members=directory.nodes,
                timeout_s=self.LINK_TIMEOUT_S,
            )
            system.attach(self._link)
        if self.is_leader:
            self._leader = Leader(
                system,
                directory=directory,
                stage=self.stage,
                warm_up=self.warm_up,
                phase_changed=self._phase_changed,
            )
        self._rank = Rank(system, seat=seat, directory=directory)
        if not await self._rank.load(self.stage):
            reason = self._rank.stopped_by.result().reason
            raise StartFailed(f"rank {seat.rank} was stopped while it loaded: {reason}")
        if self._leader is not None:
            await self._opened.wait()
            if self._failure:
                raise StartFailed(f"the world did not start: {self._failure}")

    def _phase_changed(self, phase: str, reason: str) -> None:
        if phase == "failed":
            self._failure = reason
        if phase in ("running", "failed"):
            self._opened.set()

    async def _dismiss(self) -> None:
        """Let what was taken end, then let the ranks go."""
        assert self._leader is not None
        assert self._system is not None
        await self._leader.desk.drain(reason="the host has left", timeout_s=self.stage.service.drain_s + 60)
        if not self._failure:
            for rank in range(self.seat.world_size):
                worker = self._leader.directory.worker(rank)
                self._system.ref(worker).tell(Stop(reason="the host has left"))
            # Before the ranks are gone, or the planner would take that for their loss.
            await self._leader.close()
            # The last messages leave before the link is closed.
            await asyncio.sleep(0.1 if self._link is not None else 0)

    async def _close(self) -> None:
        if self._rank is not None:
            await self._rank.close()
        if self._leader is not None:
            await self._leader.close()
        if self._link is not None:
            await self._link.close()
        self._leader = self._rank = self._link = None


def directory_of(world_size: int) -> Directory:
    """In a host's world the leader is rank 0."""
    return Directory(leader="r0", nodes=tuple(f"r{rank}" for rank in range(world_size)))


def host_seat(stage: Stage) -> Seat:
    """This process's place in the host's world: `torch.distributed` if it is initialised, else alone."""
    if not dist.is_available() or not dist.is_initialized():
        if stage.world_size != 1:
            raise BadSetting(
                f"{stage.world_size} ranks are named, but this host has one process; name one, or initialise "
                f"torch.distributed in {stage.world_size} processes first",
                path="gpu",
            )
        return Seat(rank=0, world_size=1, device_index=stage.gpu[0])
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if stage.world_size != world_size:
        raise BadSetting(
            f"{stage.world_size} ranks are named, but the host's world has {world_size} processes", path="gpu"
        )
    if world_size == 1:
        return Seat(rank=0, world_size=1, device_index=stage.gpu[0])
    return Seat(
        rank=rank, world_size=world_size, device_index=stage.gpu[rank], store=_own_part(_get_default_store())
    )


_num_runtimes = 0


def _own_part(store: Store) -> Store:
    """Each runtime of a process gets keys of its own; all processes make their runtimes in the same order."""
    global _num_runtimes
    _num_runtimes += 1
    return PrefixStore(f"epe-{_num_runtimes}", store)
