"""How loose the bound is: what a search that knows everything, and has time for one plan, finds in short runs.

    python benchmarks/scheduling_offline.py [--processes 4] [--output outputs/scheduling/offline.jsonl]
    python benchmarks/scheduling_offline.py --renew    # only the schedulers, of the cells that are in the file

The search gives each request that it serves a lane for each half of its steps, at any moment of its window, and
nothing else: so whatever it finds can be done. It takes a few requests out and puts others in, again and again. The
best that is possible lies between what it finds and the bound.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from scheduling_cells import CELL_OF, CELLS
from scheduling_entrants import CLAIRVOYANT, OURS, Entrant, read_tuned
from scheduling_runs import Job, arrivals_of, outcome_of

from epe.messages import Stage
from epe.planning.costs import CostTable
from epe.planning.work import cost_key
from epe.simulator.arrivals import Arrival
from epe.simulator.bounds import fluid_bound
from epe.simulator.metrics import measure

SEED, NUM_REQUESTS = 71, 60
NUM_BASELINES = 3
SEARCH_S, BOUND_S = 15.0, 15.0
# Bins of time in the shortest window; the whole run has at most so many.
BINS_A_WINDOW, MAX_BINS = 300, 4_000_000


class Offline(Struct, frozen=True, kw_only=True):
    """Shares of the requests of one short run that are in time; `proven`: the bound is the optimum of its programme."""

    cell: str
    num_requests: int
    bound: float
    proven: bool
    found: float
    elastic: float
    clairvoyant: float
    baseline: float

    @property
    def best(self) -> float:
        """The most that anybody found."""
        return max(self.found, self.elastic, self.clairvoyant, self.baseline)


def read_offline(path: Path) -> list[Offline]:
    """The lines of a file; none, if it is not there."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Offline) for line in lines]


# Begin, end (bins) and ranks of each part of a request.
Placed = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Way:
    """Encode, steps and decode one after the other: bins and ranks of each."""

    parts: tuple[tuple[int, int], ...]

    @property
    def length(self) -> int:
        return sum(bins for bins, _ in self.parts)

    @property
    def rank_bins(self) -> int:
        return sum(bins * ranks for bins, ranks in self.parts)


@dataclass(frozen=True)
class Want:
    """One request: the bins from its arrival to its deadline, and the ways to be in time, cheapest first."""

    first: int
    last: int
    ways: tuple[Way, ...]


class Timetable:
    """How many ranks are free in each bin."""

    def __init__(self, num_ranks: int, *, num_bins: int) -> None:
        self.free = np.full(num_bins, num_ranks, dtype=np.int16)

    def starts(self, want: Want, way: Way) -> NDArray[np.intp]:
        """The bins of the window in which it may begin, counted from its first one."""
        window = self.free[want.first : want.last]
        possible = np.ones(len(window) - way.length + 1, dtype=bool)
        after = 0
        for bins, ranks in way.parts:
            lacking = np.concatenate(([0], np.cumsum(window < ranks)))
            fits = lacking[bins:] == lacking[: len(lacking) - bins]
            possible &= fits[after : after + len(possible)]
            after += bins
        return np.flatnonzero(possible)

    def place(self, want: Want, source: random.Random) -> Placed | None:
        """Put it in: the cheapest way for which there is room, first, last or anywhere."""
        for way in want.ways:
            starts = self.starts(want, way)
            if len(starts):
                begin = want.first + int(
                    source.choice((starts[0], starts[-1], starts[source.randrange(len(starts))]))
                )
                placed = []
                for bins, ranks in way.parts:
                    placed.append((begin, begin + bins, ranks))
                    begin += bins
                self.add(tuple(placed), -1)
                return tuple(placed)
        return None

    def add(self, placed: Placed, sign: int) -> None:
        """Give the ranks of a request back (1) or take them (-1)."""
        for begin, end, ranks in placed:
            self.free[begin:end] += np.int16(sign * ranks)


class Search:
    """Mutable: `served` are the requests that are in, by their number."""

    def __init__(self, wants: Sequence[Want], num_ranks: int, *, seed: int) -> None:
        self.wants = {number: want for number, want in enumerate(wants) if want.ways}
        self.table = Timetable(num_ranks, num_bins=max(want.last for want in wants) + 1)
        self.source = random.Random(seed)
        self.served: dict[int, Placed] = {}
        self._put_in(sorted(self.wants, key=lambda number: self.wants[number].ways[0].rank_bins))

    def run(self, seconds: float) -> int:
        """Search for so long; how many are served."""
        end_s = time.process_time() + seconds
        while time.process_time() < end_s and len(self.served) < len(self.wants):
            self.exchange()
        return len(self.served)

    def exchange(self) -> None:
        """Make room for one that is out, and put as many in again as were taken out at least; else nothing happens."""
        source, before = self.source, dict(self.served)
        wanted = source.choice([number for number in self.wants if number not in before])
        near = [number for number in before if self._meet(number, wanted)]
        for number in source.sample(near, min(len(near), source.choice((1, 1, 2, 3, 4, 6)))):
            self._take_out(number)
        out = [number for number in self.wants if number not in self.served and self._meet(number, wanted)]
        source.shuffle(out)
        self._put_in([wanted, *out])
        if len(self.served) < len(before):
            for number in list(self.served):
                self._take_out(number)
            for number, placed in before.items():
                self.table.add(placed, -1)
                self.served[number] = placed

    def _meet(self, one: int, other: int) -> bool:
        a, b = self.wants[one], self.wants[other]
        return a.first < b.last and b.first < a.last

    def _put_in(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number not in self.served and (placed := self.table.place(self.wants[number], self.source)):
                self.served[number] = placed

    def _take_out(self, number: int) -> None:
        self.table.add(self.served.pop(number), 1)


def wants_of(arrivals: Sequence[Arrival], costs: CostTable, *, num_ranks: int, finish_s: float) -> list[Want]:
    """Windows are rounded inwards and tasks up, so that rounding promises nothing."""
    windows = [(a.arrival_s, (a.deadline_s or 0.0) - finish_s) for a in arrivals]
    end_s = max(last_s for _, last_s in windows)
    bin_s = max(min(last_s - first_s for first_s, last_s in windows) / BINS_A_WINDOW, end_s / MAX_BINS)
    wants = []
    for arrival, (first_s, last_s) in zip(arrivals, windows, strict=True):
        first, last = int(-(-first_s // bin_s)), int(last_s // bin_s)
        ways = (way for way in _ways(arrival, costs, num_ranks, bin_s) if way.length <= last - first)
        wants.append(Want(first, last, tuple(sorted(ways, key=lambda way: way.rank_bins))))
    return wants


def _ways(arrival: Arrival, costs: CostTable, num_ranks: int, bin_s: float) -> Iterator[Way]:
    """One for each two widths of the halves of its steps; the decode is as wide as is fastest within the lane."""

    def seconds(stage: Stage) -> dict[int, float]:
        keys = {width: cost_key(arrival.workload, stage, width) for width in range(1, num_ranks + 1)}
        return {width: costs.measured[key] for width, key in keys.items() if key in costs.measured}

    encode, decode, step = seconds(Stage.ENCODE), seconds(Stage.DECODE), seconds(Stage.DENOISE)
    half = arrival.request.num_steps // 2
    for width, later in product(step, repeat=2):
        decode_s, ranks = min((its_s, ranks) for ranks, its_s in decode.items() if ranks <= later)
        halves = ((half * step[width], width), ((arrival.request.num_steps - half) * step[later], later))
        parts = ((encode[1], 1), *halves, (decode_s, ranks))
        yield Way(tuple((int(-(-its_s // bin_s)), on) for its_s, on in parts))


def offline(cell_name: str, *, search_s: float, bound_s: float) -> Offline:
    """One short run, by everybody."""
    cell = CELL_OF[cell_name]
    arrivals = arrivals_of(_job(cell_name, OURS))
    costs = cell.cost_set.table({arrival.workload for arrival in arrivals}, world_size=cell.world_size)
    finish_s = cell.cost_set.finish_s
    wants = wants_of(arrivals, costs, num_ranks=cell.world_size, finish_s=finish_s)
    bound = fluid_bound(arrivals, costs, world_size=cell.world_size, finish_s=finish_s, time_limit_s=bound_s)
    return Offline(
        cell=cell_name,
        num_requests=NUM_REQUESTS,
        bound=bound.slo_attainment or 1.0,
        proven="optimum" in bound.kind,
        found=Search(wants, cell.world_size, seed=SEED).run(search_s) / NUM_REQUESTS,
        **_scheduled(cell_name),
    )


def renewed(line: Offline) -> Offline:
    """The same run by the schedulers as they are now; the search and the bound know nothing of them."""
    return replace(line, **_scheduled(line.cell))


def _scheduled(cell_name: str) -> dict[str, float]:
    """What each scheduler reaches, by its field."""
    baselines = [each.entrant for each in read_tuned()[cell_name][:NUM_BASELINES]]
    return {
        "elastic": _attainment(cell_name, OURS),
        "clairvoyant": _attainment(cell_name, CLAIRVOYANT),
        "baseline": max(_attainment(cell_name, each) for each in baselines),
    }


def _job(cell_name: str, entrant: Entrant) -> Job:
    return Job(cell=cell_name, seed=SEED, num_requests=NUM_REQUESTS, entrant=entrant)


def _attainment(cell_name: str, entrant: Entrant) -> float:
    return measure(outcome_of(_job(cell_name, entrant))).slo_attainment


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--cells", default=",".join(cell.name for cell in CELLS), help="names by commas (default all)")
    add("--search-seconds", type=float, default=SEARCH_S, help=f"of each cell (default {SEARCH_S:g})")
    add("--bound-seconds", type=float, default=BOUND_S, help=f"of each cell (default {BOUND_S:g})")
    add("--processes", type=int, default=1, help="at the same time (default 1)")
    add("--output", type=Path, default=Path("outputs/scheduling/offline.jsonl"), help="a line each is added")
    add(
        "--renew",
        action="store_true",
        help="run the schedulers of the lines in the file again, in this process",
    )
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    if args.renew:
        lines = [renewed(line) for line in read_offline(args.output)]
        args.output.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        return
    find = partial(offline, search_s=args.search_seconds, bound_s=args.bound_seconds)
    with ProcessPoolExecutor(args.processes) as pool, args.output.open("ab") as file:
        for done in as_completed([pool.submit(find, name) for name in args.cells.split(",")]):
            file.write(msgspec.json.encode(done.result()) + b"\n")
            file.flush()
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
