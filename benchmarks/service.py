"""What the service costs and gains on a CPU, each claim against what a user would pick instead, in one run.

    python benchmarks/service.py [--rounds 7] [--output docs/results/service.md]

Rounds are interleaved, so that both sides of a ratio meet the same machine; each round gives one ratio.
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
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: every rank has one core at most
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from rpc import measure_links
from served import Served

from epe.models.catalog import make_tiny
from epe.telemetry.log import configure

DATE = "2026-11-29"
POLICIES = ("elastic", "static_cp", "static_dp")
UNQUEUED = "unqueued.Unqueued"
# A lane that goes on: one request alone, a lease a step.
ALONE = {"size": "512x512", "num_inference_steps": 30}
# Three sizes, different step counts, over five seconds.
ARRIVALS: list[tuple[float, Mapping[str, object]]] = [
    (0.0, {"size": "512x512", "num_inference_steps": 20, "seed": 1}),
    (0.5, {"size": "256x256", "num_inference_steps": 12, "seed": 2}),
    (1.0, {"size": "384x384", "num_inference_steps": 9, "seed": 3}),
    (1.2, {"size": "256x256", "num_inference_steps": 20, "seed": 4}),
    (1.4, {"size": "512x512", "num_inference_steps": 6, "seed": 5}),
    (2.0, {"size": "256x256", "num_inference_steps": 4, "seed": 6}),
    (2.5, {"size": "384x384", "num_inference_steps": 16, "seed": 7}),
    (3.0, {"size": "256x256", "num_inference_steps": 8, "seed": 8}),
    (4.0, {"size": "384x384", "num_inference_steps": 5, "seed": 9}),
    (5.0, {"size": "512x512", "num_inference_steps": 12, "seed": 10}),
]


def spread(values: Iterable[float], *, scale: float = 1.0, digits: int = 2) -> str:
    """`median (least to most)`."""
    scaled = [value * scale for value in values]
    middle, least, most = statistics.median(scaled), min(scaled), max(scaled)
    return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def ratios(ours: Iterable[float], theirs: Iterable[float]) -> list[float]:
    """One of each round."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [" | ".join(cells) for cells in (head, ("---",) * len(head), *rows)]
    return "\n".join(f"| {line} |" for line in lines)


async def gap_section(queued: Served, unqueued: Served, *, num_rounds: int) -> str:
    services = {"next lease queued (`static_cp`)": queued, "sent after the report": unqueued}
    gaps: dict[str, list[list[float]]] = {name: [] for name in services}
    for _ in range(num_rounds):
        for name, service in services.items():
            mark = service.mark()
            await service.draw(ALONE)
            gaps[name].append(gaps_of_a_lane_that_goes_on(service, since=mark))
    rows = [
        (
            name,
            spread((statistics.median(each) for each in rounds), scale=1e3, digits=3),
            f"{quantile((gap for each in rounds for gap in each), 0.95) * 1e3:.3f}",
            str(sum(map(len, rounds))),
        )
        for name, rounds in gaps.items()
    ]
    medians = ([statistics.median(each) for each in rounds] for rounds in gaps.values())
    return (
        "## Gap between two leases of a lane that goes on\n\n"
        f"A request alone ({ALONE['size']}, {ALONE['num_inference_steps']} steps) on a lane of four ranks, a lease "
        "a step: idle time of each rank's device thread before each lease but the first. Target: under 2 ms at "
        "the median.\n\n"
        + table(("way", "median ms of a round", "95 % of all below, ms", "gaps"), rows)
        + f"\n\nRatio of medians, queued to not queued: {spread(ratios(*medians), digits=3)}."
    )


def gaps_of_a_lane_that_goes_on(service: Served, *, since: int) -> list[float]:
    """Seconds, by rank and lease: those of denoising that follow a lease of the same request on the same lane."""
    lanes = {line["seq"]: tuple(line["ranks"]) for line in service.lines("lease.sent", since=since)}
    last: dict[int, dict[str, object]] = {}
    gaps = []
    for line in service.lines("lease.ended", since=since):
        before, last[line["rank"]] = last.get(line["rank"]), line
        if before is None or line["stage"] != "denoise" or before["stage"] != "denoise":
            continue
        if before["request"] == line["request"] and lanes[before["seq"]] == lanes[line["seq"]]:  # type: ignore[index]
            gaps.append(line["gap_s"])
    return gaps


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[int(len(ordered) * share)]


async def policy_section(services: Mapping[str, Served], *, num_rounds: int) -> str:
    latency: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    makespan: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    for number in range(num_rounds):
        for policy in POLICIES[number % 3 :] + POLICIES[: number % 3]:
            seconds = await services[policy].draw_over_time(ARRIVALS)
            ends = (delay_s + each for (delay_s, _), each in zip(ARRIVALS, seconds, strict=True))
            latency[policy].append(statistics.mean(seconds))
            makespan[policy].append(max(ends))
    rows = [
        (
            policy,
            spread(latency[policy]),
            spread(makespan[policy]),
            spread(ratios(latency["elastic"], latency[policy])),
            spread(ratios(makespan["elastic"], makespan[policy])),
        )
        for policy in POLICIES
    ]
    head = ("policy", "mean latency s", "makespan s", "elastic's latency to it", "elastic's makespan to it")
    return (
        "## Elastic against the static policies\n\n"
        f"{len(ARRIVALS)} requests of three sizes over {ARRIVALS[-1][0]:g} s on four ranks, each policy in a "
        "service of its own; the services are up together and draw in turn.\n\n" + table(head, rows)
    )


def link_section() -> str:
    ours, theirs = (measured for measured in measure_links(1000).values())
    rows = [
        (name, spread((statistics.median(batch) for batch in batches), scale=1e3, digits=3))
        for name, batches in (("ask over RpcLink", ours), ("plain TCP stream", theirs))
    ]
    medians = ([statistics.median(batch) for batch in batches] for batches in (ours, theirs))
    return (
        "## Round trip of a small ask\n\n"
        "Between two processes, in turn (`benchmarks/rpc.py`). Target: under 2 ms at the median.\n\n"
        + table(("way", "median ms of a batch"), rows)
        + f"\n\nRatio: {spread(ratios(*medians), digits=1)}."
    )


async def sections(checkpoint: Path, folder: Path, *, num_rounds: int) -> list[str]:
    found: list[str] = []
    services: dict[str, Served] = {}
    try:
        for policy in (*POLICIES, UNQUEUED):
            services[policy] = await asyncio.to_thread(
                lambda policy=policy: Served(folder, checkpoint, policy=policy)
            )
        found.append(await gap_section(services["static_cp"], services[UNQUEUED], num_rounds=num_rounds))
        found.append(await policy_section(services, num_rounds=num_rounds))
    finally:
        for service in services.values():
            service.close()
    return found


def document(found: list[str], remarks: str) -> str:
    command = shlex.join(["python", "benchmarks/service.py", *sys.argv[1:]])
    names = ("torch", "diffusers", "transformers")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    head = (
        "# The service on a CPU\n\n"
        f"`{command}`, {DATE}, on {platform.machine()} with {os.cpu_count()} cores (no GPU, shared with other "
        f"work), Python {platform.python_version()}, {versions}. The model is the tiny random-weight Z-Image of "
        "`epe models make-tiny`, one thread a process.\n\n"
        "Numbers stand as `median (least to most)` over rounds; a ratio is taken within each round."
    )
    return "\n\n".join([head, *found, remarks]) + "\n"


REMARKS = """## What these figures say, and what they do not

- Four ranks share two cores, and other work ran beside them. A lane of four ranks waits for the operating system at
  every exchange, so `static_cp` looks worse and `static_dp` better than with a device for each rank: what the
  policies gain on GPUs cannot be read from this page. Where all lanes together are as fast as their narrowest form,
  not to widen is best, and `elastic` comes close to it as far as its measured costs say so.
- The gap is the time for which a device thread had nothing to run. Its upper end is the time for which the process
  had no core."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, help="write the page to this Markdown file too")
    options = parser.parse_args()
    configure(level="warning")
    with tempfile.TemporaryDirectory() as name:
        checkpoint = Path(name) / "zimage"
        make_tiny("zimage", checkpoint)
        found = asyncio.run(sections(checkpoint, Path(name), num_rounds=options.rounds))
    found.insert(1, link_section())
    page = document(found, REMARKS)
    print(page)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(page)


if __name__ == "__main__":
    main()
