"""The actors that plan and serve, wired from a stage: on the leader of a service, or on rank 0 of a host's world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from epe.actors.admission import Limits
from epe.actors.core import ActorSystem, RestartLimit
from epe.actors.desk import Desk
from epe.actors.directory import DESK, PLANNER, POSTPROCESS, Directory
from epe.actors.leasing import PlannerSettings
from epe.actors.planner import Planner
from epe.actors.postprocess import Encode, Postprocess
from epe.config.stage import Stage, VideoCodec
from epe.media import encode_file, media_type
from epe.messages import Artifact, Decoded
from epe.planning.calibration import Round, program
from epe.planning.costs import CostTable
from epe.planning.elastic import Elastic
from epe.planning.policies import elastic_settings, make_policy


class Leader:
    """Planner, postprocess actor and desk of one world; `desk` is what clients talk to."""

    def __init__(
        self,
        system: ActorSystem,
        *,
        directory: Directory,
        stage: Stage,
        warm_up: bool,
        phase_changed: Callable[[str, str], None] = lambda phase, reason: None,
    ) -> None:
        self.system = system
        self.directory = directory
        self.pool = ThreadPoolExecutor(stage.postprocess_workers, thread_name_prefix="postprocess")
        self._encode = partial(encode_artifact, codec=stage.video_codec)
        self.desk = Desk(directory=directory)
        self.planner = _planner(stage, directory=directory, warm_up=warm_up, phase_changed=phase_changed)
        system.spawn(POSTPROCESS, self._postprocess, restart=RestartLimit())
        system.spawn(PLANNER, lambda: self.planner)
        system.spawn(DESK, lambda: self.desk)

    def _postprocess(self) -> Postprocess:
        return Postprocess(directory=self.directory, encode=self._encode, run_elsewhere=self._run_elsewhere)

    async def _run_elsewhere(self, encode: Encode, pixels: Any, decoded: Decoded) -> Artifact:
        return await asyncio.get_running_loop().run_in_executor(self.pool, encode, pixels, decoded)

    async def close(self) -> None:
        """Stop the actors; what is still being encoded is given up."""
        for name in (DESK, PLANNER, POSTPROCESS):
            await self.system.stop(name)
        self.pool.shutdown(wait=False, cancel_futures=True)


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


def _planner(
    stage: Stage, *, directory: Directory, warm_up: bool, phase_changed: Callable[[str, str], None]
) -> Planner:
    scheduler = stage.parallelism.scheduler
    widths = scheduler.allowed_lane_widths
    settings = PlannerSettings(
        family=stage.family,
        widths=widths,
        cfg_parallel_degree=stage.parallelism.model.cfg_parallel_degree,
        correct_costs=scheduler.online_calibration,
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
        warmup=_warm_up(stage) if warm_up else iter(()),
        phase_changed=phase_changed,
    )


def _warm_up(stage: Stage) -> Iterator[Round]:
    scheduler = stage.parallelism.scheduler
    return program(
        stage.family,
        sizes=scheduler.warmup_resolutions,
        widths=scheduler.allowed_lane_widths,
        world=stage.world_size,
        num_steps=scheduler.warmup_steps,
        num_frames=stage.factory_args.num_frames,
        guidance_scale=stage.factory_args.guidance_scale,
    )
