"""`benchmarks.elastic_service` without GPUs: the same requests to the same service, whose ranks take for each task as
long as the costs say that its services kept on GPUs, and in the simulator. What differs is the service's own doing.

    python -m benchmarks.elastic_as_if COSTS > AS_IF.jsonl      # about eight minutes, two cores that do nothing else
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import SIGTERM
from typing import Any

from benchmarks.elastic_cells import requests, run_cell, simulated, summary, use
from benchmarks.elastic_place import REAL, WORLDS, Model, Running, costs_file, measures, policies
from benchmarks.h200_families import say
from benchmarks.serve_as_if import COMMAND
from epe.models.catalog import make_tiny
from epe.simulator.arrivals import Arrival

Line = dict[str, Any]
LOADS, SECONDS = (0.5, 0.8, 1.1), 10.0


class RunningAsIf(Running):
    """A service of ranks that take as long as a file of costs says."""

    def __init__(self, folder: Path, model: Model, name: str, *, like: Path) -> None:
        self.like = like
        super().__init__(folder, model, name)

    def _command(self, stage: Path) -> tuple[str, ...]:
        return (*COMMAND, str(stage), str(self.trace_path), str(self.like))


def cells(running: RunningAsIf, arrivals: dict[float, Sequence[Arrival]], folder: Path) -> Iterator[Line]:
    """A line for each load: what clients saw, and what the simulator foretells with the costs of the start."""
    yield {"case": "started", "policy": running.name, "seconds": round(running.wait(), 1)}
    use(running)
    for load, asked in arrivals.items():
        seen, trace = run_cell(running, asked)
        foretold = simulated(trace, running, folder=folder)
        line = {"case": "as if", "family": running.model.family, "policy": running.name, "load": load}
        yield {**line, "live": summary(seen), "simulated": summary(foretold)}


def main() -> None:
    arguments = _arguments()
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        family, world = arguments.family, arguments.world
        model = Model(family, folder / family, "cpu", "float32", REAL[family], world)
        make_tiny(family, model.checkpoint)
        first = next(name for name in policies(world) if not measures(name))
        costs = model.costs(arguments.costs / costs_file(first))
        arrivals = {
            load: requests(model, costs, load=load, seconds=arguments.seconds) for load in arguments.loads
        }
        for policy in arguments.policies or policies(world):
            like = arguments.costs / costs_file(policy if measures(policy) else first)
            running = RunningAsIf(folder / policy, model, policy, like=like)
            try:
                for line in cells(running, arrivals, folder):
                    say(line)
            finally:
                running.served.signal(SIGTERM)
                running.close(arguments.logs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("costs", type=Path, help="what --logs of benchmarks.elastic_service named")
    parser.add_argument("--family", choices=list(REAL), default="wan")
    parser.add_argument("--world", type=int, choices=WORLDS[1:], default=2)
    parser.add_argument("--policies", nargs="+", help="of their names (default: all)")
    parser.add_argument("--loads", nargs="+", type=float, default=list(LOADS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of arrivals of a cell")
    parser.add_argument("--logs", type=Path, help="a folder for what the services have logged")
    return parser.parse_args()


if __name__ == "__main__":
    main()
