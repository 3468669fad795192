"""What one picture or video costs in EPE's way on one rank, against a bare call of diffusers' pipeline on the same
weights: in one process, in turn, with the same pixels at the end. Each family has a process of its own, since what one
has left in the memory of a process makes the next ones' decode dearer on one thread than on another.

    python -m benchmarks.overhead --output docs/results/overhead.md
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded

import msgspec
import numpy as np
import torch

from epe.config.load import build_stage
from epe.families import FAMILIES
from epe.messages import OutputFormat, Request
from epe.models.catalog import make_tiny
from epe.runtime.embedded import EmbeddedDiffusionRuntime
from epe.telemetry.log import configure
from tests.oracle import load_oracle, pixels_of

NUM_STEPS = 10
TARGET = 1.03
REMARK = """\
CFG is `cfg_parallel_degree`. Z-Image's pipeline has both guidance branches as one batch, which is 1; with 2 each runs
alone, so that a lane may share them out: two forward passes, whose calls weigh in so small a model."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is drawn: (height, width, frames), guidance, and `cfg_parallel_degree` where there is one."""

    family: str
    size: tuple[int, int, int]
    guidance_scale: float
    degree: int = 1

    @property
    def largest_difference(self) -> int:
        """Steps of 1/255 that a pixel may be off: as one batch and each alone, branches have other last bits."""
        return int(self.family == "zimage" and self.degree == 2)

    def request(self, *, name: str, seed: int) -> Request:
        height, width, num_frames = self.size
        return Request(
            id=name,
            prompt="a cat on a red chair",
            negative_prompt="a dog" if FAMILIES[self.family].negative_prompt else "",
            height=height,
            width=width,
            num_frames=num_frames,
            num_steps=NUM_STEPS,
            guidance_scale=self.guidance_scale,
            seed=seed,
            output_format=OutputFormat.RAW,
        )


# Sizes at which the model, small as it is, has work to do.
TASKS = (
    Task("zimage", (512, 512, 1), 5.0),
    Task("zimage", (512, 512, 1), 5.0, degree=2),
    Task("flux1", (512, 512, 1), 3.5),
    Task("flux2-klein", (512, 512, 1), 4.0),
    Task("qwen-image", (512, 512, 1), 4.0),
    Task("wan", (256, 256, 9), 5.0),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one picture: on the clock, and of processor time in all threads of this process."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Cost:
        return cls(time.perf_counter(), time.process_time())

    def since(self, begin: Cost) -> Cost:
        return Cost(self.wall_s - begin.wall_s, self.cpu_s - begin.cpu_s)


@dataclass(frozen=True, slots=True)
class Found:
    """The costs of one task's rounds, ours and diffusers'."""

    task: Task
    ours: list[Cost]
    theirs: list[Cost]

    @property
    def ratios(self) -> list[float]:
        """Of processor seconds, one a round."""
        return [ours.cpu_s / theirs.cpu_s for ours, theirs in zip(self.ours, self.theirs, strict=True)]


def found_of(task: Task, folder: Path, num_rounds: int) -> Found:
    """In a process that has done nothing else."""
    configure(level="warning")
    checkpoint = folder / task.family
    make_tiny(task.family, checkpoint)
    return asyncio.run(measure(task, checkpoint, num_rounds=num_rounds))


async def measure(task: Task, checkpoint: Path, *, num_rounds: int) -> Found:
    """In turn, each first in every second round. Raises `AssertionError` where pixels differ."""
    oracle = load_oracle(checkpoint)
    found = Found(task, [], [])
    async with EmbeddedDiffusionRuntime(build_stage(_stage(task, checkpoint), env={})) as runtime:
        for number in range(-1, num_rounds):
            request = task.request(name=f"{number}", seed=number + 1)
            if number % 2:
                ours, pixels = await _by_epe(runtime, request)
                theirs, expected = _by_diffusers(oracle, request)
            else:
                theirs, expected = _by_diffusers(oracle, request)
                ours, pixels = await _by_epe(runtime, request)
            assert np.abs(pixels.astype(int) - expected).max() <= task.largest_difference, task
            if number >= 0:  # the round before the first one warms both up
                found.ours.append(ours)
                found.theirs.append(theirs)
    return found


async def _by_epe(runtime: EmbeddedDiffusionRuntime, request: Request) -> tuple[Cost, np.ndarray]:
    begin = Cost.now()
    result = await (await runtime.submit(request)).result()
    return Cost.now().since(begin), np.asarray(result.pixels)


def _by_diffusers(oracle: Any, request: Request) -> tuple[Cost, np.ndarray]:
    begin = Cost.now()
    pixels = pixels_of(oracle, request)
    return Cost.now().since(begin), pixels


def _stage(task: Task, checkpoint: Path) -> dict[str, object]:
    """What `epe generate` makes of its flags."""
    has_cfg = FAMILIES[task.family].owns("cfg")
    return {
        "name": "generate",
        "factory": task.family,
        "gpu": [0],
        "device": "cpu",
        "parallelism": {
            "scheduler": {"policy": "static_cp", "pulse_ms": 1000},
            "model": {"cfg_parallel_degree": task.degree} if has_cfg else {},
        },
        "factory_args": {"model_path": str(checkpoint)},
    }


def render(found: list[Found]) -> str:
    lines = [
        "# Overhead on one rank",
        "",
        f"`python -m benchmarks.overhead --rounds {len(found[0].ours)} --output docs/results/overhead.md` on "
        f"{platform.machine()}, {os.cpu_count()} cores shared with other work, Python {platform.python_version()}, "
        f"torch {torch.__version__}.",
        "",
        f"One picture or video of {NUM_STEPS} steps on a tiny model, prompt to pixels, through the embedded runtime "
        "(planner, worker, device thread), against a bare call of diffusers' pipeline in the same process and on one "
        "thread, in turn, with the same pixels; a process for each row. A ratio is that of processor seconds of one "
        "round; it stands as median "
        f"(middle half of the rounds). Target: at most {TARGET}.",
        "",
        "| family | size | CFG | EPE s | diffusers s | ratio | within the target |",
        "|---|---|---|---|---|---|---|",
        *(_row(each) for each in found),
        "",
        REMARK,
    ]
    return "\n".join(lines) + "\n"


def _row(found: Found) -> str:
    task, ratios = found.task, found.ratios
    size = "x".join(map(str, task.size if task.size[2] > 1 else task.size[:2]))
    first, middle, last = statistics.quantiles(ratios, n=4)
    seconds = (statistics.median(cost.cpu_s for cost in side) for side in (found.ours, found.theirs))
    shown = (f"{each:.2f}" for each in seconds)
    verdict = "yes" if middle <= TARGET else "no"
    cells = (
        task.family,
        size,
        str(task.degree),
        *shown,
        f"{middle:.3f} ({first:.3f} to {last:.3f})",
        verdict,
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--kept", type=Path, help="folder of what was found; a task in it is not measured again"
    )
    arguments = parser.parse_args()
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as folder:
        kept = arguments.kept or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        for task in TASKS:
            file = kept / f"{task.family}-{task.degree}.json"
            if not file.exists():
                spawn = multiprocessing.get_context("spawn")
                with ProcessPoolExecutor(1, mp_context=spawn) as process:
                    measured = process.submit(found_of, task, Path(folder), arguments.rounds).result()
                file.write_bytes(msgspec.json.encode(measured))
            found.append(msgspec.json.decode(file.read_bytes(), type=Found))
            print(_row(found[-1]), flush=True)
    text = render(found)
    if arguments.output:
        arguments.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
