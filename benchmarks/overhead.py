"""What one picture costs in EPE's way on one rank, against a bare call of diffusers' pipeline: the same process,
the same weights, the same seed, in turn."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import ZImagePipeline

from epe.config.load import build_stage
from epe.messages import OutputFormat, Request
from epe.models.checkpoint import quiet_progress
from epe.runtime.embedded import EmbeddedDiffusionRuntime

NUM_STEPS, GUIDANCE = 12, 5.0


@dataclass(frozen=True)
class Cost:
    """Seconds of one picture: on the clock, and of processor time in all threads of this process."""

    wall_s: float
    cpu_s: float

    @classmethod
    def since(cls, begin: Cost) -> Cost:
        now = cls.now()
        return cls(now.wall_s - begin.wall_s, now.cpu_s - begin.cpu_s)

    @classmethod
    def now(cls) -> Cost:
        return cls(time.perf_counter(), time.process_time())


async def measure_overhead(
    checkpoint: Path, *, side: int, cfg_parallel_degree: int, num_rounds: int
) -> tuple[list[Cost], list[Cost]]:
    """The cost of each round: EPE's and diffusers'. They must draw the same picture (as one batch: the same bits)."""
    torch.set_num_threads(1)
    with quiet_progress():
        pipeline = ZImagePipeline.from_pretrained(checkpoint, dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    ours, theirs = [], []
    async with EmbeddedDiffusionRuntime(build_stage(_stage(checkpoint, cfg_parallel_degree))) as runtime:
        for seed in range(-1, num_rounds):
            if seed % 2:
                our, picture = await _by_epe(runtime, side=side, seed=abs(seed))
                their, expected = _by_diffusers(pipeline, side=side, seed=abs(seed))
            else:
                their, expected = _by_diffusers(pipeline, side=side, seed=seed)
                our, picture = await _by_epe(runtime, side=side, seed=seed)
            assert np.abs(picture.astype(int) - expected).max() <= (cfg_parallel_degree - 1)
            if seed >= 0:  # the round before the first one warms both up
                ours.append(our)
                theirs.append(their)
    return ours, theirs


async def _by_epe(runtime: EmbeddedDiffusionRuntime, *, side: int, seed: int) -> tuple[Cost, np.ndarray]:
    """As `epe generate` measures its `elapsed_s`."""
    request = Request(
        id=f"r{seed}-{time.perf_counter_ns()}",
        prompt="a cat",
        height=side,
        width=side,
        num_steps=NUM_STEPS,
        guidance_scale=GUIDANCE,
        seed=seed,
        output_format=OutputFormat.RAW,
    )
    begin = Cost.now()
    result = await (await runtime.submit(request)).result()
    return Cost.since(begin), np.asarray(result.pixels)[0]


def _by_diffusers(pipeline: ZImagePipeline, *, side: int, seed: int) -> tuple[Cost, np.ndarray]:
    begin = Cost.now()
    picture = pipeline(
        prompt="a cat",
        negative_prompt="",
        height=side,
        width=side,
        num_inference_steps=NUM_STEPS,
        guidance_scale=GUIDANCE,
        generator=torch.Generator("cpu").manual_seed(seed),
    ).images[0]
    return Cost.since(begin), np.asarray(picture)


def _stage(checkpoint: Path, cfg_parallel_degree: int) -> dict[str, object]:
    """What `epe generate` makes of its flags."""
    return {
        "name": "generate",
        "factory": "zimage",
        "gpu": [0],
        "device": "cpu",
        "parallelism": {
            "scheduler": {"policy": "static_cp", "pulse_ms": 1000},
            "model": {"cfg_parallel_degree": cfg_parallel_degree},
        },
        "factory_args": {"model_path": str(checkpoint)},
    }
