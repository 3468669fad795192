"""How many deadlines could be met at all: a bound that no policy, however clairvoyant, can pass.

Fluid relaxation: between two breakpoints a request may spend any time at any width, steps may be cut, ranks are
interchangeable, moving is free; only the ranks' time and the fact that a request is in one place at a time count.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from epe.messages import Stage
from epe.planning.costs import CostTable
from epe.planning.work import cost_key
from epe.simulator.arrivals import Arrival

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

# What rounding may take from a window.
_SLACK_S = 1e-7


class Bound(Struct, frozen=True, kw_only=True):
    """At most this share of the requests can be in time; `kind` says what was computed."""

    slo_attainment: float | None
    kind: str


class _Window(Struct, frozen=True, kw_only=True):
    """What a request needs to be in time; seconds. Its steps may take `steps_s` at most: the rest of the time
    between arrival and deadline goes to encode and decode, which take `other` rank-seconds at least."""

    arrival_s: float
    deadline_s: float
    steps_s: float
    num_steps: int
    step_s: tuple[tuple[int, float], ...]
    other: float

    @property
    def hopeless(self) -> bool:
        return self.steps_s < self.num_steps * min(seconds for _, seconds in self.step_s)


def has_solver() -> bool:
    """Whether scipy is installed."""
    return find_spec("scipy") is not None


def fluid_bound(
    arrivals: Sequence[Arrival],
    costs: CostTable,
    *,
    world_size: int,
    finish_s: float = 0.0,
    time_limit_s: float = 60.0,
    block: int = 200,
    resolution: int = 16,
) -> Bound:
    """The dual bound of a mixed-integer programme (HiGHS) on the share of requests in time.

    More than `block` requests are cut into blocks in order of arrival, each with the world to itself, and
    breakpoints closer than 1 / `resolution` of the median window are taken for one; both only relax the programme,
    so what comes out is a bound still. `time_limit_s` is for all blocks together.
    """
    if not has_solver():
        return Bound(
            slo_attainment=None, kind="not computed: scipy is not installed (pip install 'epe[simulate]')"
        )
    order = sorted(arrivals, key=lambda arrival: arrival.arrival_s)
    windows = [_window(a, costs, world_size, finish_s) for a in order if a.deadline_s is not None]
    hopeful = [window for window in windows if not window.hopeless]
    blocks = [hopeful[first : first + block] for first in range(0, len(hopeful), block)]
    met, optimal = float(len(arrivals) - len(windows)), True
    end_s = time.monotonic() + time_limit_s
    for number, each in enumerate(blocks):
        # What an easy block leaves goes to the others.
        limit_s = max(1.0, end_s - time.monotonic()) / (len(blocks) - number)
        count, proven = _solve(_Programme(each, world_size, resolution), len(each), limit_s)
        met, optimal = met + count, optimal and proven
    solved = "optimum" if optimal else f"dual bound after {time_limit_s:g} s"
    parts = f" in {len(blocks)} blocks" if len(blocks) > 1 else ""
    return Bound(slo_attainment=met / len(arrivals), kind=f"fluid MILP{parts}, {solved}")


def _window(arrival: Arrival, costs: CostTable, world_size: int, finish_s: float) -> _Window:
    def by_width(stage: Stage) -> list[tuple[int, float]]:
        keys = ((width, cost_key(arrival.workload, stage, width)) for width in range(1, world_size + 1))
        return [(width, costs.measured[key]) for width, key in keys if key in costs.measured]

    encode, decode = by_width(Stage.ENCODE), by_width(Stage.DECODE)
    assert arrival.deadline_s is not None
    deadline_s = arrival.deadline_s - finish_s + _SLACK_S
    stages_s = sum(min(seconds for _, seconds in stage) for stage in (encode, decode))
    return _Window(
        arrival_s=arrival.arrival_s,
        deadline_s=deadline_s,
        steps_s=deadline_s - arrival.arrival_s - stages_s,
        num_steps=arrival.request.num_steps,
        step_s=tuple(by_width(Stage.DENOISE)),
        other=sum(min(width * seconds for width, seconds in stage) for stage in (encode, decode)),
    )


class _Rows:
    """The rows of a sparse matrix as they are written: each is at most `limits[row]`."""

    def __init__(self) -> None:
        self.limits: list[float] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []

    def add(self, entries: list[tuple[int, float]], *, at_most: float) -> None:
        row = len(self.limits)
        self.limits.append(at_most)
        for column, value in entries:
            self.rows.append(row)
            self.columns.append(column)
            self.values.append(value)


def _solve(programme: _Programme, num_windows: int, time_limit_s: float) -> tuple[int, bool]:
    """The largest number of windows that can be met, or a bound on it, and whether it was proven."""
    result = _milp(programme, num_binary=num_windows, time_limit_s=time_limit_s)
    bound = result.mip_dual_bound
    if bound is None or not math.isfinite(bound):
        return num_windows, False
    return min(num_windows, int(-bound + 1e-6)), result.status == 0


class _Programme:
    """Rows and columns. The first columns say which windows are met; the others are seconds at a width in an
    interval, and rank-seconds of encode and decode in an interval. `limits` are the upper limits of the columns."""

    def __init__(self, windows: list[_Window], world_size: int, resolution: int) -> None:
        self.intervals = list(pairwise(_edges(windows, resolution)))
        self.world_size = world_size
        self.rows = _Rows()
        self.limits: list[float] = [1.0] * len(windows)
        self.used: list[list[tuple[int, float]]] = [[] for _ in self.intervals]
        for number, window in enumerate(windows):
            self._add(number, window)
        for entries, (begin_s, end_s) in zip(self.used, self.intervals, strict=True):
            self.rows.add(entries, at_most=world_size * (end_s - begin_s))

    def _add(self, number: int, window: _Window) -> None:
        """A window is met if all steps are done, in the time that is left for them, and both other stages."""
        done: list[tuple[int, float]] = [(number, float(window.num_steps))]
        spent: list[tuple[int, float]] = [(number, -window.steps_s)]
        others: list[tuple[int, float]] = [(number, window.other)]
        for place, (begin_s, end_s) in enumerate(self.intervals):
            usable_s = min(end_s, window.deadline_s) - max(begin_s, window.arrival_s)
            if usable_s <= 0:
                continue
            others.append((self._column(place, 1.0, self.world_size * usable_s), -1.0))
            columns = [self._column(place, width, usable_s) for width, _ in window.step_s]
            self.rows.add([(column, 1.0) for column in columns], at_most=usable_s)
            for column, (_, seconds) in zip(columns, window.step_s, strict=True):
                done.append((column, -1.0 / seconds))
                spent.append((column, 1.0))
        for row in (done, spent, others):
            self.rows.add(row, at_most=0.0)

    def _column(self, place: int, ranks: float, limit: float) -> int:
        """A new column that takes `ranks` ranks of an interval."""
        self.used[place].append((len(self.limits), ranks))
        self.limits.append(limit)
        return len(self.limits) - 1


def _edges(windows: list[_Window], resolution: int) -> list[float]:
    """Breakpoints: all arrivals and deadlines but those that are next to another one."""
    edges = sorted({edge for window in windows for edge in (window.arrival_s, window.deadline_s)})
    apart_s = median(window.deadline_s - window.arrival_s for window in windows) / resolution
    kept = edges[:1]
    for edge in edges[1:-1]:
        if edge - kept[-1] >= apart_s and edges[-1] - edge >= apart_s:
            kept.append(edge)
    return [*kept, edges[-1]]


def _milp(programme: _Programme, *, num_binary: int, time_limit_s: float) -> OptimizeResult:
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    rows, num_columns = programme.rows, len(programme.limits)
    matrix: Any = csr_matrix((rows.values, (rows.rows, rows.columns)), shape=(len(rows.limits), num_columns))
    binary = np.arange(num_columns) < num_binary
    with _quiet():
        return milp(
            np.where(binary, -1.0, 0.0),
            integrality=binary.astype(int),
            bounds=Bounds(0.0, programme.limits),
            constraints=LinearConstraint(matrix, -np.inf, rows.limits),
            options={"time_limit": time_limit_s, "mip_rel_gap": 1e-3},
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """HiGHS writes a line of its own to the process's standard output now and then, whatever its options say."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
