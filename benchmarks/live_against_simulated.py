"""One trace through the real service and through the simulator: what the simulator foretells, and what came.

    python benchmarks/live_against_simulated.py [--requests 120] [--load 0.6]
        [--output docs/results/live-against-simulated.md]

For each policy a service of four CPU ranks measures its costs and keeps them in a file. A workload is made from these
costs, sent over HTTP in real time and recorded by the service; the recorded trace is then replayed by the simulator
with the costs of the service's start, and with those that it had at its end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: every rank has one core at most
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from scheduling_markdown import cores, table
from served import Served

from epe.models.catalog import make_tiny
from epe.planning.cost_set import CostSet
from epe.simulator.arrivals import Arrival
from epe.simulator.costs import read_cost_set
from epe.simulator.engine import simulate
from epe.simulator.machine import Physics
from epe.simulator.metrics import percentile
from epe.simulator.policies import policy_of
from epe.simulator.traces import read_trace, trace_arrivals
from epe.simulator.workloads import Deadlines, WorkloadSpec, generate
from epe.telemetry.log import configure

DATE = "2026-11-30"
WORLD = 4
SIZES = (256, 384, 512)
STEPS = 12
SEED = 1
POLICIES = ("elastic", "slo", "static_dp")
# Deadlines: so many times the best latency that a request could have alone.
DEADLINE_SCALE = 2.0


@dataclass(frozen=True)
class Seen:
    """What became of one request, live or simulated."""

    size: str
    latency_s: float
    deadline_s: float

    @property
    def met(self) -> bool:
        return self.latency_s <= self.deadline_s


@dataclass(frozen=True)
class Pair:
    """One policy: the same requests live, and simulated with the costs of the start and of the end."""

    policy: str
    live: list[Seen]
    start: list[Seen]
    end: list[Seen]


def workload(costs: CostSet, *, num_requests: int, load: float) -> tuple[Arrival, ...]:
    """Poisson arrivals of three sizes at a load, with deadlines, from costs that were just measured."""
    spec = WorkloadSpec(
        name="poisson",
        mix=",".join(f"{side}x{side}={share}" for side, share in zip(SIZES, (55, 35, 10), strict=True)),
        load=load,
        num_requests=num_requests,
        num_steps=STEPS,
        deadlines=Deadlines(scale=DEADLINE_SCALE),
    )
    return generate(spec, costs, world_size=WORLD, seed=SEED)


async def live(service: Served, arrivals: Sequence[Arrival]) -> list[Seen]:
    """Send the requests when they are due; latencies as a client has them."""
    sent = [(arrival.arrival_s, body_of(arrival)) for arrival in arrivals]
    latencies_s = await service.draw_over_time(sent)
    return [
        Seen(arrival.size, latency_s, arrival.request.deadline_s or float("inf"))
        for arrival, latency_s in zip(arrivals, latencies_s, strict=True)
    ]


def body_of(arrival: Arrival) -> dict[str, object]:
    request = arrival.request
    return {
        "size": f"{request.width}x{request.height}",
        "num_inference_steps": request.num_steps,
        "deadline_ms": round(1e3 * (request.deadline_s or 0)),
        "seed": 1,
    }


def simulated(trace: Path, costs: CostSet, *, policy: str) -> list[Seen]:
    """The recorded trace in the simulator, with the service's default settings."""
    arrivals = trace_arrivals(read_trace(str(trace)), costs, path=str(trace), world_size=WORLD)
    workloads = {arrival.workload for arrival in arrivals}
    outcome = simulate(
        arrivals,
        policy=policy_of(policy, widths=costs.widths(WORLD), world_size=WORLD),
        name=policy,
        costs=costs.table(workloads, world_size=WORLD),
        world_size=WORLD,
        physics=Physics(dispatch_s=1e-3, plan_s=1e-3),
        decode_widths=costs.decode_widths(WORLD),
    )
    deadlines = {arrival.request.id: arrival.request.deadline_s for arrival in arrivals}
    return [
        Seen(record.size, record.latency_s, deadlines[record.request_id] or float("inf"))
        for record in outcome.records
    ]


def compare(policy: str, folder: Path, checkpoint: Path, *, num_requests: int, load: float) -> Pair:
    """Start a service, measure, replay, end it, simulate."""
    folder.mkdir()
    kept, trace = folder / "costs.json", folder / "trace.jsonl"
    service = Served(
        folder,
        checkpoint,
        policy=policy,
        num_ranks=WORLD,
        sizes=SIZES,
        cost_file=str(kept),
        options=("--record-trace", str(trace)),
    )
    try:
        start = shutil.copy(kept, folder / "start.json")
        arrivals = workload(read_cost_set(str(start)), num_requests=num_requests, load=load)
        seen = asyncio.run(live(service, arrivals))
    finally:
        service.close()
    foretold = (simulated(trace, read_cost_set(str(each)), policy=policy) for each in (start, kept))
    return Pair(policy, seen, *foretold)


def rows_of(pair: Pair) -> list[list[str]]:
    """A row for each class and one for all."""
    sizes = [*(f"{side}x{side}" for side in SIZES), "all"]
    return [row for size in sizes if (row := row_of(pair, size))]


def row_of(pair: Pair, size: str) -> list[str]:
    columns = [
        [seen for seen in each if size in ("all", seen.size)] for each in (pair.live, pair.start, pair.end)
    ]
    if not columns[0]:
        return []
    cells = [pair.policy, size, str(len(columns[0]))]
    cells += [f"{sum(seen.met for seen in each) / len(each):.0%}" for each in columns]
    for share in (0.5, 0.95):
        cells += [f"{percentile([seen.latency_s for seen in each], share):.2f}" for each in columns]
    return cells


HEAD = [
    *("policy", "size", "requests"),
    *("in time: live", "start", "end"),
    *("p50 s: live", "start", "end"),
    *("p95 s: live", "start", "end"),
]


def differences(pairs: Sequence[Pair]) -> str:
    """How far the simulator was from what came, over the rows above."""
    lines = []
    for name, column in (("start", 3 + 1), ("end", 3 + 2)):
        rows = [row for pair in pairs for row in rows_of(pair)[:-1]]
        points = [abs(share(row[column]) - share(row[3])) for row in rows]
        middles = [abs(float(row[column + 3]) / float(row[6]) - 1) for row in rows]
        tails = [abs(float(row[column + 6]) / float(row[9]) - 1) for row in rows]
        lines.append(
            f"- Costs of the {name}: attainment of a class differs by {mean(points):.1f} points in the mean "
            f"(at most {max(points):.1f}), the median latency by {mean(middles):.0%} (at most {max(middles):.0%}), "
            f"the 95 % latency by {mean(tails):.0%} (at most {max(tails):.0%})."
        )
    return "\n".join(lines)


def share(cell: str) -> float:
    return float(cell.removesuffix("%"))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def document(pairs: Sequence[Pair], *, load: float) -> str:
    command = shlex.join(["python", "benchmarks/live_against_simulated.py", *sys.argv[1:]])
    loads = os.getloadavg()
    rows = [row for pair in pairs for row in rows_of(pair)]
    return f"""# Live against simulated

`{command}`, {DATE}, on {platform.machine()} with {cores()} (no GPU; load average {loads[1]:.1f}
over the last five minutes, other work included), Python {platform.python_version()}. The model is the tiny
random-weight Z-Image of `epe models make-tiny`, one thread a rank, {WORLD} ranks, {STEPS} steps a request, deadlines of
{DEADLINE_SCALE:g} times the best latency alone, Poisson arrivals at a load of {load:g} by the costs measured at the
start. Live latencies are those of an HTTP client.

Each policy has a service of its own. *Start* is the simulator with the costs of that service's warm-up, *end* with
those that it kept when it ended, corrected by all that it drew.

{table(HEAD, rows)}

{differences(pairs)}

## What these figures say, and what they do not

- The simulator gives every task its usual seconds. Here {WORLD} ranks share {cores()} with each other
  and with other work: a step takes longer while more ranks are at work, and by chance. The warm-up measures with all
  lanes at work, so its costs are those of a full machine.
- *End* has seen the run that it is asked about; *start* has not. Where *end* is nearer, the machine had changed since
  the warm-up (or other work had come or gone), not the planner.
- Ranks with a device each share neither cores nor caches; how near the simulator is there, this page cannot show.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--output", type=Path, help="write the page to this Markdown file too")
    options = parser.parse_args()
    configure(level="warning")
    pairs = []
    with tempfile.TemporaryDirectory() as name:
        checkpoint = Path(name) / "zimage"
        make_tiny("zimage", checkpoint)
        for policy in POLICIES:
            folder = Path(name) / policy
            pairs.append(
                compare(policy, folder, checkpoint, num_requests=options.requests, load=options.load)
            )
            print(table(HEAD, rows_of(pairs[-1])), flush=True)
    page = document(pairs, load=options.load)
    print(page)
    if options.output:
        options.output.write_text(page)


if __name__ == "__main__":
    main()
