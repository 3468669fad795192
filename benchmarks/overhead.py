"""What one picture costs in EPE's way on one rank, against a bare call of diffusers' pipeline: the same process,
the same weights, the same seed, in turn."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from diffusers import ZImagePipeline

from epe.config.load import build_stage
from epe.messages import OutputFormat, Request
from epe.runtime.embedded import EmbeddedDiffusionRuntime

SIDE, NUM_STEPS, GUIDANCE = 512, 10, 5.0


async def measure_overhead(
    checkpoint: Path, *, cfg_parallel_degree: int, num_rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of each round: EPE's and diffusers'. They must draw the same picture (as one batch: the same bits)."""
    torch.set_num_threads(1)
    pipeline = ZImagePipeline.from_pretrained(checkpoint, dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    ours, theirs = [], []
    async with EmbeddedDiffusionRuntime(build_stage(_stage(checkpoint, cfg_parallel_degree))) as runtime:
        for seed in range(-1, num_rounds):
            if seed % 2:
                our_s, picture = await _by_epe(runtime, seed=abs(seed))
                their_s, expected = _by_diffusers(pipeline, seed=abs(seed))
            else:
                their_s, expected = _by_diffusers(pipeline, seed=seed)
                our_s, picture = await _by_epe(runtime, seed=seed)
            assert np.abs(picture.astype(int) - expected).max() <= (cfg_parallel_degree - 1)
            if seed >= 0:  # the round before the first one warms both up
                ours.append(our_s)
                theirs.append(their_s)
    return ours, theirs


async def _by_epe(runtime: EmbeddedDiffusionRuntime, *, seed: int) -> tuple[float, np.ndarray]:
    """As `epe generate` measures its `elapsed_s`."""
    request = Request(
        id=f"r{seed}-{time.perf_counter_ns()}",
        prompt="a cat",
        height=SIDE,
        width=SIDE,
        num_steps=NUM_STEPS,
        guidance_scale=GUIDANCE,
        seed=seed,
        output_format=OutputFormat.RAW,
    )
    begin_s = time.perf_counter()
    result = await (await runtime.submit(request)).result()
    return time.perf_counter() - begin_s, np.asarray(result.pixels)[0]


def _by_diffusers(pipeline: ZImagePipeline, *, seed: int) -> tuple[float, np.ndarray]:
    begin_s = time.perf_counter()
    picture = pipeline(
        prompt="a cat",
        negative_prompt="",
        height=SIDE,
        width=SIDE,
        num_inference_steps=NUM_STEPS,
        guidance_scale=GUIDANCE,
        generator=torch.Generator("cpu").manual_seed(seed),
    ).images[0]
    return time.perf_counter() - begin_s, np.asarray(picture)


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
