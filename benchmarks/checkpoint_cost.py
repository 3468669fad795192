"""What keeping checkpoints costs at 512x512: two services of four CPU ranks, one that keeps them and one that does not.

    python -m benchmarks.checkpoint_cost [--rounds 9] [--model demo] [--output docs/results/checkpoint-cost.md]

Each round sends the same requests to one service and then to the other, and gives one ratio; who comes first changes.
Where other work shares the machine, processor time says more than pictures a second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import yaml

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: every rank has one core at most

from epe.config.demo import DEMO
from epe.models.catalog import make_tiny
from tests.service.served import Served, serve, write_stage

DATE = "2026-11-30"
MODELS = {
    "tiny": "the tiny random-weight Z-Image of `epe models make-tiny`",
    "demo": "the demo model of this package (trained, 47 MB)",
}
BODY = {"size": "512x512", "num_inference_steps": 12}
NUM_AT_ONCE = 8


def start(folder: Path, model_path: str, *, checkpoint_mb: int) -> Served:
    """A service of four ranks that keeps so much."""
    own = folder / f"keeps-{checkpoint_mb}"
    own.mkdir()
    path = write_stage(own, model_path, num_ranks=4)
    stage = yaml.safe_load(path.read_text())
    stage["service"]["checkpoint_mb"] = checkpoint_mb
    stage["parallelism"]["scheduler"]["cost_file"] = str(folder / "costs.json")
    path.write_text(yaml.safe_dump(stage))
    served = serve(own, path)
    assert served.url
    return served


@dataclass(frozen=True)
class Round:
    """What one service took: wall time a picture, and processor time of all of its processes a picture."""

    wall_s: float
    cpu_s: float


async def draw_all(served: Served, *, seed: int) -> Round:
    """Requests that come all at once."""
    begin_s, cpu_s = time.perf_counter(), _cpu_s(served)
    replies = await asyncio.gather(
        *(served.draw(seed=100 * seed + index, **BODY) for index in range(NUM_AT_ONCE))
    )
    assert [reply.status for reply in replies] == [200] * NUM_AT_ONCE
    wall_s = time.perf_counter() - begin_s
    return Round(wall_s / NUM_AT_ONCE, (_cpu_s(served) - cpu_s) / NUM_AT_ONCE)


def _cpu_s(served: Served) -> float:
    return sum(process.cpu_s for process in served.processes())


async def measure(keeps: Served, without: Served, *, rounds: int) -> list[tuple[Round, Round]]:
    """(with, without) of each round; what comes before the first one is for kernels and lanes alone."""
    found = []
    for index in range(rounds + 1):
        order = (keeps, without) if index % 2 else (without, keeps)
        took = {served: await draw_all(served, seed=index) for served in order}
        found.append((took[keeps], took[without]))
    return found[1:]


def row(name: str, pairs: list[tuple[float, float]]) -> str:
    """A line of the table: both sides, and the ratio of each round."""
    kept, none = zip(*pairs, strict=True)
    ratios = [a / b for a, b in pairs]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    return (
        f"| {name} | {statistics.median(kept):.3f} | {statistics.median(none):.3f} "
        f"| {statistics.mean(ratios):.3f} ± {error:.3f} | {statistics.median(ratios):.3f} |"
    )


def report(rounds: list[tuple[Round, Round]], *, command: str, model: str) -> str:
    """Markdown."""
    return "\n".join(
        [
            "# What checkpoints cost",
            "",
            f"`{command}`, {DATE}, on {platform.machine()} with {os.cpu_count()} cores (no GPU, shared with other "
            f"work), Python {platform.python_version()}, torch {version('torch')}. Four CPU ranks, "
            f"{MODELS[model]}; {NUM_AT_ONCE} requests at once of 512x512 and "
            f"{BODY['num_inference_steps']} steps, a lease a step; {len(rounds)} rounds, each asks both services.",
            "",
            "| seconds a picture | kept (median) | not kept (median) | mean ratio ± standard error | median ratio |",
            "|---|---|---|---|---|",
            row("wall time", [(kept.wall_s, none.wall_s) for kept, none in rounds]),
            row("processor time of all processes", [(kept.cpu_s, none.cpu_s) for kept, none in rounds]),
            "",
            "Target: at most 1 % of throughput.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--output", type=Path, help="write the page there; else it is printed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model_path = DEMO
        if args.model == "tiny":
            model_path = str(folder / "zimage")
            make_tiny("zimage", folder / "zimage")
        services = [start(folder, model_path, checkpoint_mb=each) for each in (1024, 0)]
        try:
            rounds = asyncio.run(measure(*services, rounds=args.rounds))
        finally:
            for served in services:
                served.close()
    command = shlex.join(["python", "-m", "benchmarks.checkpoint_cost", *sys.argv[1:]])
    page = report(rounds, command=command, model=args.model)
    if args.output:
        args.output.write_text(page)
    else:
        print(page)


if __name__ == "__main__":
    main()
