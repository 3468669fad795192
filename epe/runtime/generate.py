"""`epe generate`: one picture or video on all ranks that run this command, then the file and its sidecar."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import uvloop

from epe.actors.desk import Result
from epe.config.generate import GenerateOptions
from epe.config.load import build_stage
from epe.config.stage import Stage as StageFile
from epe.config.transport import methods_of
from epe.errors import BadSetting
from epe.families import family
from epe.files import write_whole
from epe.media import encode_file
from epe.media.sidecar import Effective, make_sidecar, write_sidecar
from epe.messages import OutputFormat, Progress, RankStatus, Stage
from epe.runtime.embedded import EmbeddedDiffusionRuntime
from epe.runtime.gpus import pick_device
from epe.runtime.meeting import Meeting, seat_of
from epe.runtime.rank import Seat, lane_backend, owns_gpu
from epe.telemetry.log import configure
from epe.transport.groups import Backend


def run_generate(options: GenerateOptions, meeting: Meeting) -> float | None:
    """Draw the picture over a lane of all ranks; rank 0 writes it and returns its `elapsed_s`, the others None.

    That covers text encoding, denoising, decoding and postprocessing, with device work waited for;
    not loading, not saving.
    """
    configure(level="warning", node=f"r{meeting.rank}")
    elapsed_s: float | None = uvloop.run(_generate(options, meeting))
    return elapsed_s


async def _generate(options: GenerateOptions, meeting: Meeting) -> float | None:
    stage = stage_of(options, meeting.world_size)
    seat = seat_of(meeting, command="generate")
    async with EmbeddedDiffusionRuntime(stage, seat=seat) as runtime:
        if not runtime.is_leader:
            return None
        request = msgspec.structs.replace(options.request, output_format=OutputFormat.RAW)
        begin_s = time.perf_counter()
        handle = await runtime.submit(request, watcher=progress_bar())
        try:
            result = await handle.result()
        except asyncio.CancelledError:
            handle.cancel()  # else the runtime would draw it to the end before it closes
            raise
        elapsed_s = time.perf_counter() - begin_s
        ranks = (await runtime.status()).ranks
        try:
            await asyncio.to_thread(_save, options, seat, stage, result, ranks, elapsed_s)
        except OSError as error:
            raise BadSetting(
                f"{options.output} cannot be written: {error.strerror}", path="--output"
            ) from error
    return elapsed_s


def stage_of(options: GenerateOptions, world_size: int) -> StageFile:
    """A stage that draws this one picture over the whole world."""
    request, transport, owns = options.request, options.transport, family(options.family).owns
    model = {"cfg_parallel_degree": options.cfg_parallel_degree} if owns("cfg") else {}
    planes = {"tensor_parallel_degree": options.tensor_parallel_degree} if owns("tp") else {}
    width = world_size // options.tensor_parallel_degree
    return build_stage(
        {
            "name": "generate",
            "factory": options.family,
            "gpu": list(range(world_size)),
            "device": options.device,
            "dtype": options.dtype,
            "parallelism": {
                "cp": {
                    "world_size": width,
                    "attention_mode": transport.method,
                    "ulysses_degree": transport.ulysses_degree,
                    **{f"{method}_transport": transport.backend for method in methods_of(transport.method)},
                },
                "scheduler": {
                    "policy": "static_cp",
                    "allowed_lane_widths": [width],
                    "pulse_ms": 1000,
                    "warmup_resolutions": [[request.height, request.width]],
                },
                "model": model | planes,
                "vae": {} if options.parallel_vae is None else {"enabled": options.parallel_vae},
            },
            "factory_args": {"model_path": options.model_path},
        }
    )


def _save(
    options: GenerateOptions,
    seat: Seat,
    stage: StageFile,
    result: Result,
    ranks: Sequence[RankStatus],
    elapsed_s: float,
) -> None:
    request = options.request
    data = encode_file(
        np.asarray(result.pixels),
        format=request.output_format,
        compression=request.output_compression,
        fps=request.fps,
        codec=options.video_codec,
    )
    write_whole(options.output, data)
    effective = _effective(options, seat, stage, result, ranks)
    write_sidecar(options.sidecar, make_sidecar(options, effective, elapsed_s=elapsed_s))


def _effective(
    options: GenerateOptions, seat: Seat, stage: StageFile, result: Result, ranks: Sequence[RankStatus]
) -> Effective:
    """How the work was in fact divided."""
    target = pick_device(options.device, index=seat.device_index)
    num_ranks = max(len(visit.ranks) for visit in result.account.visits if visit.stage is Stage.DENOISE)
    width = num_ranks // stage.num_planes
    transport = _transport(lane_backend(stage, owns=owns_gpu(seat, target)), ranks)
    guided = stage.family.num_conditions(options.request.guidance_scale) == 2
    return Effective(
        world_size=seat.world_size,
        device=target.type,
        dtype=_dtype(options, target.type),
        cp_backend=None if num_ranks == 1 else transport,
        cfg_parallel=options.cfg_parallel_degree == 2 and guided and width % 2 == 0,
        lane_width=width,
        vae_width=_vae_width(stage, result),
        cache=result.account.cache,
    )


def _transport(wanted: Backend, ranks: Sequence[RankStatus]) -> Backend:
    """What the lane exchanged over: one that could not share memory fell back to NCCL."""
    is_shared = any(rank.use is not None and rank.use.lanes_bytes for rank in ranks)
    return "nccl" if wanted == "fast" and not is_shared else wanted


def _vae_width(stage: StageFile, result: Result) -> int | None:
    """How many ranks decoded in bands; None where one decoded whole."""
    if not stage.decodes_in_bands:
        return None
    return max(len(visit.ranks) for visit in result.account.visits if visit.stage is Stage.DECODE)


def _dtype(options: GenerateOptions, device: str) -> str:
    if options.dtype != "auto":
        return options.dtype
    return "bfloat16" if device == "cuda" else "float32"


def progress_bar() -> Callable[[Progress], None] | None:
    """Draws the steps on a terminal; None elsewhere."""
    if not sys.stderr.isatty():
        return None

    def draw(progress: Progress) -> None:
        filled = 30 * progress.step // progress.num_steps
        bar = "#" * filled + "." * (30 - filled)
        end = "\n" if progress.stage is Stage.DECODE else ""
        sys.stderr.write(f"\r{progress.stage:<8}[{bar}] {progress.step}/{progress.num_steps}{end}")
        sys.stderr.flush()

    return draw
