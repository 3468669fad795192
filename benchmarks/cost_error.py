"""How far the cost model is from what tasks take, through the real service.

    python benchmarks/cost_error.py [--requests 60] [--output docs/results/costs.md]

A service measures two of three sizes at its start, then draws all three under `elastic`. For each lease the planner had
an expectation when it sent it; the ranks report what it took. Beside the error of the expectation stands the noise: how
far a task is from the one of its kind before it. How noisy the machine is by itself is measured without the service.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: every rank has one core at most
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
from scheduling_markdown import cores, table
from served import Served

from epe.messages import Request, Split
from epe.models.catalog import load_adapter, make_tiny
from epe.models.contract import Adapter
from epe.models.loading import Loading
from epe.telemetry.log import configure
from epe.transport.exchange import SoloExchange

DATE = "2026-11-30"
WORLDS = (1, 2, 4)
MEASURED = (256, 512)
SIZES = (256, 384, 512)
STEPS = (8, 12, 20)
TARGET = 0.05
SEED = 1


@dataclass(frozen=True)
class Task:
    """One lease of a client's request: seconds of the task, of one step for denoising."""

    request: str
    stage: str
    width: int
    size: str
    num_steps: int
    predicted_s: float
    seconds: float

    @property
    def kind(self) -> tuple[str, int, str]:
        return self.stage, self.width, self.size

    @property
    def error(self) -> float:
        return abs(self.predicted_s / self.seconds - 1)


def drawn(folder: Path, checkpoint: Path, *, num_ranks: int, num_requests: int) -> list[Task]:
    """All leases of a service that draws three sizes, in the order in which they ended."""
    service = Served(folder, checkpoint, policy="elastic", num_ranks=num_ranks, sizes=MEASURED)
    try:
        asyncio.run(service.draw_over_time(arrivals(num_requests, num_ranks=num_ranks)))
        sizes = {line["request"]: line["size"] for line in service.lines("request.admitted")}
        return [
            Task(
                line["request"],
                line["stage"],
                line["width"],
                sizes[line["request"]],
                line["num_steps"],
                line["predicted_s"],
                line["seconds"],
            )
            for line in service.lines("lease.ran")
            if line["request"] in sizes
        ]
    finally:
        service.close()


def arrivals(num_requests: int, *, num_ranks: int) -> list[tuple[float, dict[str, object]]]:
    """Requests at random times, somewhat fewer than the cores of this machine can draw."""
    source = random.Random(SEED)
    mean_gap_s = 3.0 / min(num_ranks, len(os.sched_getaffinity(0)))
    at_s, found = 0.0, []
    for seed in range(num_requests):
        side = source.choice(SIZES)
        body = {"size": f"{side}x{side}", "num_inference_steps": source.choice(STEPS), "seed": seed}
        found.append((at_s, body))
        at_s += source.expovariate(1 / mean_gap_s)
    return found


def noise(tasks: Iterable[Task]) -> list[float]:
    """How far each task is from the one of its kind before it."""
    kinds: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for task in tasks:
        kinds[task.kind].append(task.seconds)
    return [abs(before / after - 1) for each in kinds.values() for before, after in pairwise(each)]


def whole(tasks: Iterable[Task]) -> list[Task]:
    """Each request as one task: the sums of what its leases were expected to take, and took."""
    requests: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        requests[task.request].append(task)
    return [
        Task(
            name,
            "request",
            0,
            each[0].size,
            1,
            sum(max(1, task.num_steps) * task.predicted_s for task in each),
            sum(max(1, task.num_steps) * task.seconds for task in each),
        )
        for name, each in requests.items()
    ]


@dataclass(frozen=True)
class Alone:
    """Steps of the model in this process, without a service: how far one is from the one before it, in seconds on the
    clock and in processor seconds."""

    size: str
    clock: float
    processor: float


def drawn_alone(checkpoint: Path, *, num_steps: int = 60) -> list[Alone]:
    """What the machine does to equal pieces of the same work."""
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    adapter = load_adapter(
        "zimage", checkpoint, Loading(device=cpu, dtype=torch.float32, cfg_parallel_degree=1)
    )
    return [alone(adapter, side, num_steps=num_steps) for side in SIZES]


def alone(adapter: Adapter, side: int, *, num_steps: int) -> Alone:
    """One size."""
    state = adapter.encode(
        Request(
            id="a", prompt="a cat", height=side, width=side, num_steps=num_steps, guidance_scale=5.0, seed=1
        )
    )
    clock, processor = [], []
    for _ in range(num_steps):
        begin = time.perf_counter(), time.thread_time()
        state = adapter.step(state, SoloExchange(), Split())
        clock.append(time.perf_counter() - begin[0])
        processor.append(time.thread_time() - begin[1])
    return Alone(f"{side}x{side}", differences(clock), differences(processor))


def differences(seconds: Sequence[float]) -> float:
    """The median difference between each and the one before it."""
    return median(abs(before / after - 1) for before, after in pairwise(seconds))


def row(name: Sequence[str], tasks: Sequence[Task]) -> list[str]:
    """Number, median seconds, error and noise of some tasks."""
    bias = median(task.predicted_s / task.seconds - 1 for task in tasks)
    around = noise(tasks)
    return [
        *name,
        str(len(tasks)),
        f"{1e3 * median(task.seconds for task in tasks):.1f}",
        f"{median(task.error for task in tasks):.1%}",
        f"{bias:+.1%}",
        f"{median(around):.1%}" if around else "-",
    ]


def section(num_ranks: int, tasks: Sequence[Task]) -> str:
    """One world."""
    kinds: dict[tuple[str, int, str], list[Task]] = defaultdict(list)
    for task in tasks:
        kinds[task.kind].append(task)
    rows = [row((stage, str(width), size), kinds[stage, width, size]) for stage, width, size in sorted(kinds)]
    rows.append(row(("all", "", ""), tasks))
    rows.append([*row(("a request, summed", "", ""), whole(tasks))[:-1], "-"])
    head = ["task", "width", "size", "tasks", "median ms", "error", "bias", "noise"]
    ranks = f"{num_ranks} rank" + "s" * (num_ranks > 1)
    return f"## {ranks} on {cores()}\n\n{table(head, rows)}"


def verdict(worlds: dict[int, list[Task]], *, by_itself: Sequence[Alone]) -> str:
    """The target, and what came."""
    found = ", ".join(f"{each.size} {each.clock:.1%} ({each.processor:.1%})" for each in by_itself)
    lines = [
        "- The machine by itself: steps of the same model in one process without a service differ from the one "
        f"before by this much of the clock (of processor time): {found}."
    ]
    for num_ranks, tasks in worlds.items():
        error, around = median(task.error for task in tasks), median(noise(tasks))
        reached = "reached" if error <= TARGET else "not reached"
        lines.append(
            f"- {num_ranks} rank{'s' * (num_ranks > 1)}: {error:.1%} at the median ({reached}), where a task differs "
            f"from the one before it by {around:.1%}; a whole request {median(t.error for t in whole(tasks)):.1%}."
        )
    return "\n".join(lines)


def document(worlds: dict[int, list[Task]], *, by_itself: Sequence[Alone]) -> str:
    command = shlex.join(["python", "benchmarks/cost_error.py", *sys.argv[1:]])
    sections = "\n\n".join(section(num_ranks, tasks) for num_ranks, tasks in worlds.items())
    return f"""# What tasks were expected to take, and took

`{command}`, {DATE}, on {platform.machine()} with {cores()} (no GPU; load average {os.getloadavg()[1]:.1f}
over the last five minutes, other work included), Python {platform.python_version()}. The model is the tiny
random-weight Z-Image of `epe models make-tiny`, one thread a rank. {MEASURED[0]} and {MEASURED[1]} pixels a side were
measured at the start, {SIZES[1]} was not.

*Error* is the median of |expected / taken - 1| over all leases, *bias* the median of expected / taken - 1, *noise*
the median difference between a task and the one of its kind before it. The target is an error of at most {TARGET:.0%}
at the median.

{verdict(worlds, by_itself=by_itself)}

{sections}

## What these figures say, and what they do not

- What nobody can foresee, the model cannot either: where two equal tasks, one after the other, differ by as much as
  the noise, the error cannot be much below it. Where the clock differs and processor time does not, other work had the
  core. Over a whole request it evens out.
- Ranks on the cores of one machine slow each other. The warm-up measures with all lanes at work, so its costs are
  those of a full machine; a request alone is faster, and the correction follows with the samples that come.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--output", type=Path, help="write the page to this Markdown file too")
    options = parser.parse_args()
    configure(level="warning")
    worlds = {}
    with tempfile.TemporaryDirectory() as name:
        checkpoint = Path(name) / "zimage"
        make_tiny("zimage", checkpoint)
        by_itself = drawn_alone(checkpoint)
        for num_ranks in WORLDS:
            folder = Path(name)
            worlds[num_ranks] = drawn(folder, checkpoint, num_ranks=num_ranks, num_requests=options.requests)
            print(section(num_ranks, worlds[num_ranks]), flush=True)
    page = document(worlds, by_itself=by_itself)
    print(page)
    if options.output:
        options.output.write_text(page)


if __name__ == "__main__":
    main()
