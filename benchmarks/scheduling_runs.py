"""One run of one scheduler on one list of requests, and the file of all that were made: a line each, so that a
program that was stopped goes on where it was."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec
from msgspec import Struct
from scheduling_cells import CELL_OF
from scheduling_code import planner_code, simulator_code
from scheduling_entrants import Entrant

from epe.simulator.arrivals import Arrival
from epe.simulator.bounds import Bound, fluid_bound
from epe.simulator.engine import simulate
from epe.simulator.machine import Physics
from epe.simulator.metrics import ClassMetrics, Metrics, measure, measure_classes, percentile
from epe.simulator.outcome import Outcome
from epe.simulator.workloads import generate

DISPATCH_S = 1e-3
PLAN_S = 1e-3
NUM_QUANTILES = 101


class Job(Struct, frozen=True, kw_only=True):
    """What is to be run; without an entrant the bound, for so many seconds."""

    cell: str
    seed: int
    num_requests: int
    entrant: Entrant | None = None
    limit_s: float = 0.0

    @property
    def key(self) -> bytes:
        return msgspec.json.encode(self)


class Line(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came out. `quantiles` are normalised latencies at 0, 1, ... 100 %; `code` is that of our planner, and
    `simulator` that of the simulator (empty in lines from before it was noted)."""

    job: Job
    code: str
    simulator: str = ""
    took_s: float
    metrics: Metrics | None = None
    classes: dict[str, ClassMetrics] = {}
    quantiles: tuple[float, ...] = ()
    bound: Bound | None = None


class Log:
    """The lines of a file; of several about one job the last counts, and one that was cut off does not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        whole, newline, torn = (path.read_bytes() if path.exists() else b"").rpartition(b"\n")
        if torn:
            os.truncate(path, len(whole + newline))
        decode = msgspec.json.Decoder(Line).decode
        self.lines: dict[bytes, Line] = {line.job.key: line for line in map(decode, whole.splitlines())}

    def add(self, line: Line) -> None:
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self.lines[line.job.key] = line

    def missing(self, jobs: Iterable[Job], *, renew: bool = False) -> list[Job]:
        """Those without a line; with `renew` also those whose line was made by another version of the simulator or, if
        it is one of ours, of our planner."""
        return [job for job in jobs if self._is_missing(job, renew)]

    def _is_missing(self, job: Job, renew: bool) -> bool:
        line = self.lines.get(job.key)
        return line is None or (renew and is_outdated(line))


def is_outdated(line: Line) -> bool:
    """Whether what it tells of is no longer the code that is here; a bound knows neither planner nor simulator."""
    entrant = line.job.entrant
    if entrant is None:
        return False
    return line.simulator != simulator_code() or (entrant.policy == "elastic" and line.code != planner_code())


def run_all(jobs: list[Job], *, num_processes: int) -> Iterator[Line]:
    """In order with one process, as they come with several."""
    if num_processes == 1:
        yield from map(run, jobs)
        return
    with ProcessPoolExecutor(num_processes) as pool:
        futures: list[Future[Line]] = [pool.submit(run, job) for job in jobs]
        for future in as_completed(futures):
            yield future.result()


def run(job: Job) -> Line:
    """Do it now."""
    begin_s = time.process_time()
    if job.entrant is None:
        bound = _bound(job)
        return Line(job=job, code=planner_code(), took_s=time.process_time() - begin_s, bound=bound)
    outcome = outcome_of(job)
    latencies = [record.normalized_latency for record in outcome.records]
    return Line(
        job=job,
        code=planner_code(),
        simulator=simulator_code(),
        took_s=time.process_time() - begin_s,
        metrics=measure(outcome),
        classes=measure_classes(outcome),
        quantiles=tuple(percentile(latencies, share / (NUM_QUANTILES - 1)) for share in range(NUM_QUANTILES)),
    )


def outcome_of(job: Job) -> Outcome:
    """Everything that happened in a run."""
    cell, entrant = CELL_OF[job.cell], job.entrant
    assert entrant is not None
    arrivals = arrivals_of(job)
    costs = cell.cost_set.table({arrival.workload for arrival in arrivals}, world_size=cell.world_size)
    widths = cell.cost_set.widths(cell.world_size)
    return simulate(
        arrivals,
        policy=entrant.make(widths=widths, world_size=cell.world_size),
        name=entrant.name,
        costs=costs,
        world_size=cell.world_size,
        physics=Physics(dispatch_s=DISPATCH_S, plan_s=PLAN_S, seed=job.seed, clairvoyant=entrant.clairvoyant),
        finish_s=cell.cost_set.finish_s,
    )


def _bound(job: Job) -> Bound:
    cell, arrivals = CELL_OF[job.cell], arrivals_of(job)
    return fluid_bound(
        arrivals,
        cell.cost_set.table({arrival.workload for arrival in arrivals}, world_size=cell.world_size),
        world_size=cell.world_size,
        finish_s=cell.cost_set.finish_s,
        time_limit_s=job.limit_s,
    )


def arrivals_of(job: Job) -> tuple[Arrival, ...]:
    """The same for every entrant."""
    cell = CELL_OF[job.cell]
    spec = cell.of(num_requests=job.num_requests)
    return generate(spec, cell.cost_set, world_size=cell.world_size, seed=job.seed)
