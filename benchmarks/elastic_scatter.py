"""The cells of a run of `benchmarks.elastic_service` in the simulator once more, with the costs that each service ended
with, and how far its figures scatter when each task takes a little more or less: nobody can foretell a class nearer
than that.

    python -m benchmarks.elastic_scatter COSTS RUN.jsonl > SCATTER.jsonl      # COSTS is what its --logs named; a minute

A line for each policy, of these costs, and for each cell that was run: what the service had, what is simulated, and of
each class the least and the most of runs that scatter, with the share of them that are as near to one without scatter
as the simulator shall be to the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from benchmarks.elastic_cells import PHYSICS, foretold, so_many, summary
from benchmarks.elastic_foretold import costs_of, model_of, parser_of
from benchmarks.elastic_place import Model, costs_file, policies, told
from benchmarks.h200_families import say
from benchmarks.multi_gpu_page import read
from benchmarks.nearness import FIGURES, is_near
from epe.planning.cost_set import CostSet
from epe.simulator.arrivals import Arrival

Line = dict[str, Any]
# As the tenth shortest and longest of steps that were measured are off their median.
JITTER, SEEDS = 0.02, range(20)
# As on two H200: in their logs a lease is on its way for 2 ms, and a report with its state for 8 (the mean).
LOGGED = replace(PHYSICS, dispatch_s=2e-3, report_s=8e-3)


def cells(model: Model, folder: Path, lines: Sequence[Line]) -> Iterator[Line]:
    """A line for each policy, and one for each cell of a run, with the same requests."""
    first = next(iter(policies(model.world)))
    began = {line["policy"]: line["tasks"] for line in lines if line["case"] == "costs"}
    for name in dict.fromkeys(line["policy"] for line in lines if line["case"] == "cell"):
        ended = told(model.costs(folder / costs_file(name)))
        yield {"case": "ended with", "policy": name, "began": began.get(name, began[first]), "tasks": ended}
    began_with = as_measured(costs_of(model, folder, first), began[first])
    for line in lines:
        if line["case"] == "cell" and "live" in line:
            name, live, load = line["policy"], line["live"], line["load"]
            costs = model.costs(folder / costs_file(name))
            arrivals = so_many(model, began_with, load=load, num_requests=live["all"]["requests"])
            found = _scatter(model, arrivals, costs, name, live)
            yield {"case": "scatter", "load": load, "policy": name, "live": live, **found}


def as_measured(costs: CostSet, tasks: Sequence[Line]) -> CostSet:
    """The costs that a service began with, of those that it ended with and what it told of its tasks."""
    seen = {(each["stage"], each["tokens"], each["width"]): each for each in tasks}
    kept = []
    for task in costs.tasks:
        each = seen.get((task.stage, task.tokens, task.width))
        kept.append(replace(task, seconds=each["seconds"], p90_s=each["p90_s"]) if each else task)
    return replace(costs, tasks=tuple(kept))


def _scatter(model: Model, arrivals: Sequence[Arrival], costs: CostSet, name: str, live: Line) -> Line:
    def run(jitter: float, seed: int) -> Line:
        physics = replace(LOGGED, jitter=jitter, seed=seed)
        return summary(foretold(arrivals, costs, name=name, world=model.world, physics=physics))

    plain, runs = run(0.0, 0), [run(JITTER, seed) for seed in SEEDS]
    return {"simulated": plain, "classes": {each: _of(each, live, plain, runs) for each in plain}}


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
