"""What it gives that the planner knows which steps are computed: a part of the requests has half of its steps made by
FlexCache, and the same policy plans with and without knowing it, on the simulator.

    python -m benchmarks.flexcache_planning --output docs/results/flexcache-planning.md
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean, stdev

from msgspec.structs import replace

from benchmarks.flexcache_settings import evenly
from epe.planning.costs import CostTable
from epe.simulator.arrivals import Arrival, best_s, single_s
from epe.simulator.costs import CostSet
from epe.simulator.engine import simulate
from epe.simulator.machine import Physics
from epe.simulator.metrics import Metrics, measure
from epe.simulator.policies import policy_of
from epe.simulator.published import PUBLISHED
from epe.simulator.workloads import WorkloadSpec, generate, rescaled

COST_SETS, WORLD, LOADS, SHARES = ("flux", "qwen-h20"), 8, (0.7, 0.9, 1.1), (0.5, 1.0)
# Of the best latency alone, of what is computed.
DEADLINE = 2.0


def arrivals_of(cost_set: CostSet, *, load: float, share: float, num: int, seed: int) -> tuple[Arrival, ...]:
    """Requests of which `share` compute every second step; load and deadlines count what is computed."""
    spec = WorkloadSpec(load=load, num_requests=num)
    plain, source = generate(spec, cost_set, world_size=WORLD, seed=seed), Random(f"flexcache/{seed}")
    costs = cost_set.table({arrival.workload for arrival in plain}, world_size=WORLD)
    mixed = [_with(arrival, costs, cached=source.random() < share) for arrival in plain]
    return rescaled(mixed, world_size=WORLD, load=load)


def _with(arrival: Arrival, costs: CostTable, *, cached: bool) -> Arrival:
    num_steps = arrival.request.num_steps
    reuse = evenly(num_steps // 2, num_steps) if cached else None
    num_computed = len(reuse.computed) if reuse else num_steps
    best = best_s(costs, arrival.workload, num_steps=num_computed)
    return replace(
        arrival,
        request=replace(arrival.request, reuse=reuse, deadline_s=DEADLINE * best),
        single_s=single_s(costs, arrival.workload, num_steps=num_computed),
        best_s=best,
    )


def drawn(cost_set: CostSet, arrivals: Sequence[Arrival], *, knows: bool, seed: int) -> Metrics:
    """Under `elastic`, whose costs are corrected as in service."""
    table = partial(cost_set.table, {arrival.workload for arrival in arrivals}, world_size=WORLD)
    outcome = simulate(
        arrivals,
        policy=policy_of("elastic", widths=cost_set.widths(WORLD), world_size=WORLD),
        name="elastic",
        costs=table(),
        truth=table(),
        world_size=WORLD,
        physics=Physics(seed=seed),
        finish_s=cost_set.finish_s,
        correct_costs=True,
        knows_reuse=knows,
    )
    return measure(outcome)


def rows(*, num: int, seeds: Sequence[int]) -> list[str]:
    found = []
    for name in COST_SETS:
        cost_set = PUBLISHED[name]()
        for share in SHARES:
            for load in LOADS:
                found.append(_row(cost_set, name, load=load, share=share, num=num, seeds=seeds))
                print(found[-1], flush=True)
    return found


def _row(cost_set: CostSet, name: str, *, load: float, share: float, num: int, seeds: Sequence[int]) -> str:
    in_time: dict[bool, list[float]] = {True: [], False: []}
    latency: dict[bool, list[float]] = {True: [], False: []}
    for seed in seeds:
        arrivals = arrivals_of(cost_set, load=load, share=share, num=num, seed=seed)
        for knows in (True, False):
            metrics = drawn(cost_set, arrivals, knows=knows, seed=seed)
            in_time[knows].append(100 * metrics.slo_attainment)
            latency[knows].append(metrics.mean_latency_s)
    gains = [
        knowing - not_knowing for knowing, not_knowing in zip(in_time[True], in_time[False], strict=True)
    ]
    faster = [b / a for a, b in zip(latency[True], latency[False], strict=True)]
    spread = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    return (
        f"| {name} | {share:.0%} | {load:g} | {fmean(in_time[True]):.1f} | {fmean(in_time[False]):.1f} "
        f"| {fmean(gains):+.1f} ± {spread:.1f} | {fmean(faster):.2f} |"
    )


def page(found: Sequence[str], *, num: int, num_seeds: int, command: str) -> str:
    return "\n".join(
        [
            "# FlexCache and the planner",
            "",
            f"`{command}`",
            "",
            f"{WORLD} ranks of published costs on the simulator, Poisson arrivals of the mix `small`, {num} requests "
            f"of each of {num_seeds} seeds. A part of them computes every second step, evenly spaced; a deadline is "
            f"{DEADLINE:g} times what the request takes alone at best, and load counts what is computed. `elastic` "
            "plans with the plan of each request, or as if every step were computed; both correct their costs by what "
            "leases take. The gain is in points, with its standard error over the seeds. A planner that can keep a "
            "deadline lets others wait for it, so that the mean latency may grow while more requests are in time.",
            "",
            "| costs | cached | load | in time, aware % | unaware % | gain | latency, unaware by aware |",
            "|---|--:|--:|--:|--:|--:|--:|",
            *found,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    found = rows(num=args.requests, seeds=range(1, args.seeds + 1))
    command = f"python -m benchmarks.flexcache_planning --requests {args.requests} --seeds {args.seeds}"
    text = page(found, num=args.requests, num_seeds=args.seeds, command=command)
    if args.output:
        args.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
