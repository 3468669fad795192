"""How far the simulator's figures of a cell of `benchmarks.elastic_service` scatter when each task takes a little more
or less than its cost: nobody can foretell a class nearer than that.

    python -m benchmarks.elastic_scatter COSTS RUN.jsonl > SCATTER.jsonl      # COSTS is what its --logs named; a minute

A line for each cell that was run: of each class what the service had, the least and the most of the runs, and the share
of the runs that are as near to one without scatter as the simulator shall be to the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from benchmarks.elastic_cells import PHYSICS, foretold, so_many, summary
from benchmarks.elastic_foretold import costs_of, model_of, parser_of
from benchmarks.elastic_place import Model, measures, policies
from benchmarks.h200_families import say
from benchmarks.multi_gpu_page import read
from benchmarks.nearness import FIGURES, is_near
from epe.planning.cost_set import CostSet
from epe.simulator.arrivals import Arrival

Line = dict[str, Any]
# As the tenth shortest and longest of steps that were measured are off their median.
JITTER, SEEDS = 0.02, range(20)


def cells(model: Model, folder: Path, lines: Sequence[Line]) -> Iterator[Line]:
    """A line for each cell of a run, with the same requests."""
    measured = {line["policy"]: line["tasks"] for line in lines if line["case"] == "costs"}
    first = next(iter(policies(model.world)))
    for line in lines:
        if line["case"] == "cell" and "live" in line:
            name, live, load = line["policy"], line["live"], line["load"]
            of_all = as_measured(costs_of(model, folder, first), measured[first])
            own = as_measured(costs_of(model, folder, name), measured[name]) if measures(name) else of_all
            arrivals = so_many(model, of_all, load=load, num_requests=live["all"]["requests"])
            yield {
                "case": "scatter",
                "load": load,
                "policy": name,
                **_scatter(model, arrivals, own, name, live),
            }


def as_measured(costs: CostSet, tasks: Sequence[Line]) -> CostSet:
    """The costs that a service began with, of those that it ended with and what it told of its tasks."""
    told = {(each["stage"], each["tokens"], each["width"]): each for each in tasks}
    kept = []
    for task in costs.tasks:
        each = told.get((task.stage, task.tokens, task.width))
        kept.append(replace(task, seconds=each["seconds"], p90_s=each["p90_s"]) if each else task)
    return replace(costs, tasks=tuple(kept))


def _scatter(model: Model, arrivals: Sequence[Arrival], costs: CostSet, name: str, live: Line) -> Line:
    def run(jitter: float, seed: int) -> Line:
        physics = replace(PHYSICS, jitter=jitter, seed=seed)
        return summary(foretold(arrivals, costs, name=name, world=model.world, physics=physics))

    plain, runs = run(0.0, 0), [run(JITTER, seed) for seed in SEEDS]
    return {"requests": len(arrivals), "classes": {each: _of(each, live, plain, runs) for each in plain}}


def _of(name: str, live: Line, plain: Line, runs: Sequence[Line]) -> Line:
    """Of one class, under `near` how often each figure is."""
    ranges = {
        each: [min(run[name][each] for run in runs), max(run[name][each] for run in runs)] for each in FIGURES
    }
    near = {
        each: fmean(is_near(each, run[name][each], plain[name][each]) for run in runs) for each in FIGURES
    }
    return {"live": {each: live[name][each] for each in ("requests", *FIGURES)}, **ranges, "near": near}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("run", type=Path, help="what it told, a line each")
    arguments = parser.parse_args()
    for line in cells(model_of(arguments), arguments.costs, read([arguments.run])):
        say(line)


if __name__ == "__main__":
    main()
