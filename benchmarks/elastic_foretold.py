"""What the simulator foretells of `benchmarks.elastic_service` with costs that its services have left in a folder.

    python -m benchmarks.elastic_foretold COSTS > FORETOLD.jsonl      # some seconds, no GPU

Each load has the requests of several seeds, for longer than a machine of several GPUs is to be had.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.elastic_cells import foretold, requests, summary
from benchmarks.elastic_place import REAL, WORLDS, Model, costs_file, measures, policies
from benchmarks.h200_families import say
from epe.planning.cost_set import CostSet

Line = dict[str, Any]
LOADS = (0.3, 0.5, 0.8, 1.1)
SECONDS, SEEDS = 30.0, range(1, 11)
FIGURES = ("in_time", "per_second", "mean_s", "p50_s", "p95_s")


def cells(model: Model, folder: Path) -> Iterator[Line]:
    """A line for each load and policy: means over the seeds."""
    names = list(policies(model.world))
    first = costs_of(model, folder, names[0])
    for load in LOADS:
        arrivals = [requests(model, first, load=load, seconds=SECONDS, seed=seed) for seed in SEEDS]
        for name in names:
            costs = costs_of(model, folder, name)
            each = [summary(foretold(one, costs, name=name, world=model.world))["all"] for one in arrivals]
            yield {"case": "foretold", "family": model.family, "load": load, "policy": name, **_mean(each)}


def costs_of(model: Model, folder: Path, name: str) -> CostSet:
    """What a policy plans with: its own service's costs if that measures, else those of the first."""
    first = next(iter(policies(model.world)))
    return model.costs(folder / costs_file(name if measures(name) else first))


def _mean(each: Sequence[Line]) -> Line:
    found = {name: round(fmean(one[name] for one in each), 4) for name in FIGURES}
    return {"requests": sum(one["requests"] for one in each), **found}


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """For programs that begin with the kept costs of a run."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("costs", type=Path, help="what --logs of benchmarks.elastic_service named")
    parser.add_argument("--family", choices=list(REAL), default="wan")
    parser.add_argument("--world", type=int, choices=WORLDS[1:], default=2)
    return parser


def model_of(arguments: argparse.Namespace) -> Model:
    """The model that the costs are of."""
    return Model(arguments.family, Path(), "cuda", "bfloat16", REAL[arguments.family], arguments.world)


def main() -> None:
    arguments = parser_of(__doc__).parse_args()
    for line in cells(model_of(arguments), arguments.costs):
        say(line)


if __name__ == "__main__":
    main()
