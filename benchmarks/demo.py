"""How soon a newcomer sees a picture: loading the demo model and drawing 256x256 in 12 steps, in one process,
beside diffusers' own pipeline on the same weights, interleaved.

    python benchmarks/demo.py --output docs/results/demo.md
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import time
from pathlib import Path
from statistics import median

import torch
from diffusers import ZImagePipeline

from epe import EmbeddedDiffusionRuntime
from epe.config.demo import demo_stage, model_folder

PROMPT = "a red cube on a white table"
STEPS, SIDE, GUIDANCE, SEED = 12, 256, 3.0, 7


def with_diffusers(pipeline: ZImagePipeline) -> float:
    begin_s = time.perf_counter()
    pipeline(
        prompt=PROMPT,
        height=SIDE,
        width=SIDE,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        generator=torch.Generator("cpu").manual_seed(SEED),
        max_sequence_length=128,
    )
    return time.perf_counter() - begin_s


async def with_epe(runtime: EmbeddedDiffusionRuntime) -> float:
    begin_s = time.perf_counter()
    await runtime.generate(PROMPT, num_steps=STEPS, seed=SEED)
    return time.perf_counter() - begin_s


async def measure(rounds: int) -> tuple[float, list[tuple[float, float]]]:
    """Seconds to load beyond the imports, and (EPE, diffusers) seconds of each round."""
    stage = demo_stage(0, num_ranks=1)
    stage["parallelism"]["model"] = {"cfg_parallel_degree": 1}
    begin_s = time.perf_counter()
    async with EmbeddedDiffusionRuntime.from_stage(stage) as runtime:
        load_s = time.perf_counter() - begin_s
        pipeline = ZImagePipeline.from_pretrained(model_folder("demo"), torch_dtype=torch.float32)
        pipeline.set_progress_bar_config(disable=True)
        await with_epe(runtime), with_diffusers(pipeline)
        return load_s, [(await with_epe(runtime), with_diffusers(pipeline)) for _ in range(rounds)]


def report(load_s: float, rounds: list[tuple[float, float]]) -> str:
    ours, theirs = zip(*rounds, strict=True)
    ratios = sorted(a / b for a, b in rounds)
    rows = [
        f"| {name} | {median(times):.2f} | {min(times):.2f} to {max(times):.2f} |"
        for name, times in (("EPE, one process", ours), ("diffusers' pipeline", theirs))
    ]
    return "\n".join(
        [
            "# The first picture of the demo model",
            "",
            f"`python benchmarks/demo.py --output docs/results/demo.md` on {platform.machine()}, "
            f"one thread, Python {platform.python_version()}, torch {torch.__version__}; "
            f"{SIDE}x{SIDE}, {STEPS} steps, guidance {GUIDANCE:g} as one batch, {len(rounds)} rounds, interleaved, "
            "other work on the machine.",
            "",
            f"Loading took {load_s:.2f} s beyond the imports.",
            "",
            "| way | median s | range |",
            "|---|---|---|",
            *rows,
            "",
            f"Ratio: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}).",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    text = report(*asyncio.run(measure(args.rounds)))
    print(text)
    if args.output:
        args.output.write_text(text)


if __name__ == "__main__":
    main()
