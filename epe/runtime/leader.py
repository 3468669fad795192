"""The actors that plan and serve, wired from a stage: on the leader of a service, or on rank 0 of a host's world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from epe.actors.admission import Limits
from epe.actors.checkpoints import Checkpoints, Seen
from epe.actors.core import ActorSystem, RestartLimit
from epe.actors.desk import Desk
from epe.actors.directory import CHECKPOINTS, DESK, PLANNER, POSTPROCESS, Directory
from epe.actors.keeper import KEEPER, KeepCosts, Keeper
from epe.actors.leasing import PlannerSettings
from epe.actors.planner import Planner
from epe.actors.postprocess import Encode, Postprocess
from epe.actors.previews import Previews
from epe.actors.recorder import RECORDER, Flush, Recorder
from epe.actors.timeline import TIMELINE, Timeline
from epe.config.stage import Stage, VideoCodec
from epe.errors import Gone
from epe.execution.faults import Faults
from epe.media import encode_file, media_type
from epe.media.preview import encode_preview
from epe.messages import Artifact, Decoded, OutputFormat, Palette, Request, StateHeader
from epe.messages import Stage as TaskStage
from epe.planning.calibration import Program, batch_sizes
from epe.planning.costs import CostTable
from epe.planning.elastic import Elastic
from epe.planning.policies import elastic_settings, make_policy
from epe.runtime.cost_file import NONE, CostFile
from epe.telemetry.log import get_logger
from epe.telemetry.trace_file import append_trace

# How long the end of a service waits for a disk.
WRITE_WITHIN_S = 2.0

log = get_logger("runtime")


class Leader:
    """Planner, postprocess actor and desk of one world; `desk` is what clients talk to."""

    def __init__(
        self,
        system: ActorSystem,
        *,
        directory: Directory,
        stage: Stage,
        warm_up: bool,
        survives: bool = False,
        trace_path: str | None = None,
        offer_state: Seen = lambda header, tensors: None,
        timeline_path: str | None = None,
        phase_changed: Callable[[str, str], None] = lambda phase, reason: None,
    ) -> None:
        self.system = system
        self._offer_state = offer_state
        self.directory = directory
        self.pool = ThreadPoolExecutor(stage.postprocess_workers, thread_name_prefix="postprocess")
        self._encode: Encode = partial(encode_artifact, codec=stage.video_codec)
        if stage.faults:
            log.warning(
                "faults.were_armed", num_faults=len(stage.faults), reason="the stage file asks for them"
            )
            self._encode = _struck(self._encode, Faults(stage.faults, rank=None))
        self.previews = Previews(render=render_preview, run_elsewhere=self._run_elsewhere, part=first_frame)
        self.desk = Desk(directory=directory, previews=self.previews)
        self._keeps_costs = warm_up and stage.parallelism.scheduler.cost_file != NONE
        self.planner = _planner(
            stage,
            directory=directory,
            warm_up=warm_up,
            keeps_costs=self._keeps_costs,
            records=trace_path is not None,
            survives=survives,
            phase_changed=phase_changed,
        )
        self._spawn_writers(stage, trace_path)
        if timeline_path is not None:
            write = partial(append_trace, timeline_path)
            self.desk.listen(Timeline(system.spawn(TIMELINE, partial(Recorder, write=write))).hear)
        if survives:
            limit_bytes = stage.service.checkpoint_mb * 2**20
            keep = partial(Checkpoints, directory=directory, limit_bytes=limit_bytes, seen=self._see)
            system.spawn(CHECKPOINTS, keep)
        system.spawn(POSTPROCESS, self._postprocess, restart=RestartLimit())
        system.spawn(PLANNER, lambda: self.planner)
        system.spawn(DESK, lambda: self.desk)

    def _see(self, header: StateHeader, tensors: Mapping[str, Any]) -> None:
        """A state has come: somebody may want to look at it, and to have it on disk."""
        self.previews.see(header, tensors)
        self._offer_state(header, tensors)

    def _spawn_writers(self, stage: Stage, trace_path: str | None) -> None:
        """The actors that write to a disk, as far as they are wanted."""
        if trace_path is not None:
            self.system.spawn(RECORDER, partial(Recorder, write=partial(append_trace, trace_path)))
        if self._keeps_costs:
            file = CostFile(stage.parallelism.scheduler.cost_file, name=stage.factory)
            keeper = partial(Keeper, directory=self.directory, read=file.read, write=file.write)
            self.system.spawn(KEEPER, keeper, restart=RestartLimit())

    def _postprocess(self) -> Postprocess:
        return Postprocess(directory=self.directory, encode=self._encode, run_elsewhere=self._run_elsewhere)

    async def _run_elsewhere(self, work: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *given)

    async def close(self) -> None:
        """Stop the actors; what is still being encoded is given up."""
        for name in (PLANNER, DESK, POSTPROCESS):
            await self.system.stop(name)
        await self.system.stop(CHECKPOINTS)
        await self._keep_costs()
        await self._end(RECORDER, Flush())
        await self._end(TIMELINE, Flush())
        self.pool.shutdown(wait=False, cancel_futures=True)

    async def _keep_costs(self) -> None:
        """What was learned since the planner last had it kept."""
        costs = self.planner.warming.costs_to_keep() if self._keeps_costs else None
        await self._end(KEEPER, None if costs is None else KeepCosts(costs=costs))

    async def _end(self, name: str, last: Struct | None) -> None:
        """End an actor that writes to a disk, after a last message."""
        if last is not None:
            with suppress(TimeoutError, Gone):
                await self.system.ref(name).ask(last, timeout_s=WRITE_WITHIN_S)
        await self.system.stop(name)


def encode_artifact(pixels: Any, decoded: Decoded, *, codec: VideoCodec = "auto") -> Artifact:
    """The file of one picture or video: `pixels` is uint8 (frames, height, width, 3)."""
    data = encode_file(
        np.asarray(pixels),
        format=decoded.output_format,
        compression=decoded.output_compression,
        fps=decoded.fps,
        codec=codec,
    )
    return Artifact(request_id=decoded.request_id, media_type=media_type(decoded.output_format), data=data)


def _struck(encode: Encode, faults: Faults) -> Encode:
    """The making of files with the faults of its stage."""

    def struck(pixels: Any, decoded: Decoded) -> Artifact:
        faults.strike(TaskStage.FINISH, request_id=decoded.request_id)
        return encode(pixels, decoded)

    return struck


def first_frame(latents: Any) -> Any:
    """Of latents of a video, (1, values, frames, rows, columns), those of the first frame, in memory of their own."""
    return latents[:, :, :1].clone() if latents.ndim == 5 else latents


def render_preview(latents: Any, noise: Any, palette: Palette, request: Request) -> bytes:
    """The file of a preview, of tensors in host memory; that of a video is a WebP."""
    shows_frame = request.output_format.holds == "video"
    return encode_preview(
        latents.float().numpy(),
        noise.float().numpy(),
        palette,
        height=request.height,
        width=request.width,
        format=OutputFormat.WEBP if shows_frame else request.output_format,
        compression=request.output_compression,
    )


def _planner(
    stage: Stage,
    *,
    directory: Directory,
    warm_up: bool,
    keeps_costs: bool,
    records: bool,
    survives: bool,
    phase_changed: Callable[[str, str], None],
) -> Planner:
    scheduler = stage.parallelism.scheduler
    widths = scheduler.allowed_lane_widths
    settings = PlannerSettings(
        family=stage.family,
        widths=widths,
        cfg_parallel_degree=stage.parallelism.model.cfg_parallel_degree,
        num_planes=stage.num_planes,
        decode_widths=stage.decode_widths,
        max_batch=scheduler.max_batch,
        refreshes=stage.cache.on_move == "cheaper",
        correct_costs=scheduler.online_calibration,
        survives=survives,
        checkpoints=survives and stage.service.checkpoint_mb > 0,
        hang_s=stage.service.hang_s,
        start_s=stage.service.start_s,
        limits=Limits(
            max_pending=scheduler.max_pending_requests,
            max_inflight=scheduler.max_inflight_requests,
            refuse_late=scheduler.admission == "refuse",
        ),
    )
    return Planner(
        settings,
        directory=directory,
        policy=make_policy(scheduler, widths=widths),
        fallback=Elastic(elastic_settings(scheduler, widths=widths)),
        costs=CostTable(),
        warmup=_warm_up(stage) if warm_up else None,
        keeps_costs=keeps_costs,
        records=records,
        phase_changed=phase_changed,
    )


def _warm_up(stage: Stage) -> Program:
    scheduler = stage.parallelism.scheduler
    return Program(
        family=stage.family,
        sizes=stage.warmup_sizes,
        widths=scheduler.allowed_lane_widths,
        world=stage.parallelism.cp.world_size,
        num_steps=scheduler.warmup_steps,
        guidance_scale=stage.factory_args.guidance_scale,
        decode_widths=stage.decode_widths,
        batches=batch_sizes(scheduler.max_batch),
        usual_steps=stage.factory_args.num_steps,
    )
