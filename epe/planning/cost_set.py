"""Cost sets: what tasks cost on some hardware, with the sizes that are drawn there, from a source that is named.

A service keeps what it has measured in a file of this form, and the simulator reads it (docs/simulator.md); published
ones are in `epe.simulator.published`. A size outside a set's range is refused, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta, Struct

from epe.errors import BadSetting
from epe.families import family
from epe.messages import Stage
from epe.planning.costs import CostKey, CostTable, Migration, Workload
from epe.planning.work import cost_key

# Files are read from wherever a user points; with numbers of any size the planner's arithmetic would end in infinities.
Count = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(ge=1e-9, le=1e9)]
Rank = Annotated[int, Meta(ge=0, le=2**53)]
Bytes = Annotated[int, Meta(ge=0, le=2**53)]


class TaskCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured seconds of one task (for denoising, of one step) on a lane of `width` ranks.

    `seconds` is the median, `p90_s` what nine of ten take at most; `peak_bytes` is the most memory that a rank had
    in use meanwhile, its model included. `finish` is the way of the pixels to the leader and the making
    of the file, off the ranks.
    """

    stage: Literal["encode", "denoise", "decode", "finish"]
    tokens: Count
    width: Count = 1
    seconds: Seconds
    p90_s: Seconds | None = None
    peak_bytes: Count | None = None
    conditions: Annotated[int, Meta(ge=1, le=2)] = 1
    batch: Count = 1
    model: str = ""

    @property
    def key(self) -> CostKey:
        return CostKey(
            stage=Stage(self.stage),
            tokens=self.tokens,
            width=self.width,
            batch=self.batch,
            conditions=self.conditions,
            model=self.model,
        )


class MoveCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured seconds from the rank `source`, which holds a state, to `rank`, which lacks it."""

    source: Rank
    rank: Rank
    state_bytes: Bytes
    seconds: Seconds


class Size(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of requests: what a mix is made of. `family` gives tokens, `model` names the rows of its costs."""

    name: str
    family: str
    model: str = ""
    height: Count
    width: Count
    num_frames: Count = 1
    num_steps: Count = 50
    conditions: Annotated[int, Meta(ge=1, le=2)] = 1

    @staticmethod
    def named(*, height: int, width: int, num_frames: int) -> str:
        """How sizes are called that were measured on this machine: `512x768`, width first, or `832x480x17`."""
        return f"{width}x{height}" + (f"x{num_frames}" if num_frames > 1 else "")

    @property
    def makes(self) -> str:
        return family(self.family).makes

    @property
    def workload(self) -> Workload:
        sides = {"height": self.height, "width": self.width, "num_frames": self.num_frames}
        kind = family(self.family)
        return Workload(
            tokens=kind.num_tokens(**sides),
            conditions=self.conditions,
            state_bytes=kind.state_bytes(**sides),
            model=self.model,
        )


class CostSet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """All that the simulator knows of a machine.

    `interpolation` says what holds between the sizes of the rows: `none`, or `tokens`: a straight line in
    log(tokens), log(seconds) through the two rows next to it, for each model, stage, width and conditions;
    never beyond the smallest and largest row. An encode or decode on more ranks than any row has costs what
    the widest row says. `finish_s` is the time from the decoded picture to the encoded file, off the ranks, of sizes
    without a row of their own; `migration` is assumed of pairs of ranks, unless `moves` were measured. A rank may use
    `memory_bytes` (None: all that tasks need), of which its model takes `resident_bytes`.
    """

    name: str
    hardware: str = ""
    sources: tuple[str, ...] = ()
    fingerprint: str = ""
    interpolation: Literal["none", "tokens"] = "none"
    migration: Migration = Migration()
    moves: tuple[MoveCost, ...] = ()
    finish_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    memory_bytes: Bytes | None = None
    resident_bytes: Bytes = 0
    sizes: Annotated[tuple[Size, ...], Meta(min_length=1)]
    tasks: Annotated[tuple[TaskCost, ...], Meta(min_length=1)]

    def widths(self, world_size: int) -> tuple[int, ...]:
        """Lane widths of at most `world_size` ranks for which every size has a step cost."""
        known = [{width for width, _ in self._rows(size.workload, Stage.DENOISE)} for size in self.sizes]
        return tuple(sorted(width for width in set.intersection(*known) if width <= world_size))

    def decode_widths(self, world_size: int) -> tuple[int, ...]:
        """Widths of at most `world_size` ranks of which some size has a decode cost: the lanes that decode."""
        known = {width for size in self.sizes for width, _ in self._rows(size.workload, Stage.DECODE)}
        return tuple(sorted(width for width in known if width <= world_size)) or (1,)

    def table(self, workloads: Iterable[Workload], *, world_size: int) -> CostTable:
        """Seconds of every task of these workloads at every known width; raises `BadSetting` for one not covered."""
        measured: dict[CostKey, float] = {}
        for workload in sorted(set(workloads), key=lambda each: (each.model, each.tokens, each.conditions)):
            if fault := self.fault(workload):
                raise BadSetting(fault, path=self.name)
            measured |= self._tasks(workload, world_size)
        table = CostTable(measured, migration=self.migration)
        enter_beside(table, self)
        return table

    def fault(self, workload: Workload) -> str | None:
        """Why this set cannot tell what a workload costs, or None."""
        for stage in (Stage.ENCODE, Stage.DENOISE, Stage.DECODE):
            if not self._rows(workload, stage):
                return self._uncovered(workload, stage)
        return None

    def seconds(self, workload: Workload, stage: Stage, width: int) -> float | None:
        """Seconds of a task, or None where the set does not tell them."""
        rows = self._rows(workload, stage)
        if stage is not Stage.DENOISE:
            rows = [row for row in rows if row[0] <= width][-1:]
            return rows[0][1] if rows else None
        return dict(rows).get(width)

    def _tasks(self, workload: Workload, world_size: int) -> Iterator[tuple[CostKey, float]]:
        for stage in Stage:
            for width in range(1, world_size + 1):
                seconds = self.seconds(workload, stage, width)
                if seconds is not None:
                    yield cost_key(workload, stage, width), seconds

    def _rows(self, workload: Workload, stage: Stage) -> list[tuple[int, float]]:
        """(width, seconds) of a workload's task, widths ascending."""
        found = []
        for (row_stage, model, conditions, width), points in self._points.items():
            wanted = cost_key(workload, stage, width)
            if (row_stage, model, conditions) == (stage, wanted.model, wanted.conditions):
                seconds = self._at(points, workload.tokens)
                if seconds is not None:
                    found.append((width, seconds))
        return sorted(found)

    @cached_property
    def _points(self) -> dict[tuple[Stage, str, int, int], list[tuple[int, float]]]:
        """(tokens, seconds), ascending, by stage, model, conditions and width."""
        points: dict[tuple[Stage, str, int, int], list[tuple[int, float]]] = {}
        for task in sorted(self.tasks, key=lambda task: task.tokens):
            if task.batch == 1:
                place = (Stage(task.stage), task.model, task.conditions, task.width)
                points.setdefault(place, []).append((task.tokens, task.seconds))
        return points

    def _at(self, points: list[tuple[int, float]], tokens: int) -> float | None:
        exact = dict(points).get(tokens)
        if exact is not None or self.interpolation == "none":
            return exact
        for (t0, s0), (t1, s1) in pairwise(points):
            if t0 < tokens < t1:
                slope = math.log(s1 / s0) / math.log(t1 / t0)
                return float(s0 * (tokens / t0) ** slope)
        return None

    def _uncovered(self, workload: Workload, stage: Stage) -> str:
        known = sorted(
            {
                tokens
                for (its, model, _, _), points in self._points.items()
                for tokens, _ in points
                if (its, model) == (stage, workload.model)
            }
        )
        what = f"{workload.tokens} tokens" + (f" of model {workload.model!r}" if workload.model else "")
        what += f" with {workload.conditions} guidance branch" + "es" * (workload.conditions > 1)
        if not known:
            return f"cost set {self.name!r} has no {stage} cost for {what}"
        rule = (
            f"from {known[0]} to {known[-1]}"
            if self.interpolation == "tokens"
            else ", ".join(map(str, known))
        )
        return f"cost set {self.name!r} has no {stage} cost for {what}; it covers {rule} tokens"


def enter_beside(table: CostTable, given: CostSet) -> None:
    """Put what a set says beside seconds into a table: moves by pair of ranks, and memory."""
    for move in given.moves:
        table.moves.enter((move.source, move.rank), move.state_bytes, move.seconds)
    table.memory.limit_bytes = given.memory_bytes
    table.memory.resident_bytes = given.resident_bytes
    for task in given.tasks:
        if task.peak_bytes is not None:
            table.memory.enter(task.key, task.peak_bytes)


def restore(table: CostTable, given: CostSet) -> None:
    """Put all that a service had measured back into its table."""
    for task in given.tasks:
        table.enter(task.key, task.seconds, spread=max(1.0, (task.p90_s or 0.0) / task.seconds))
    enter_beside(table, given)


def cost_set_of(costs: CostTable, *, name: str, sizes: tuple[Size, ...], fingerprint: str = "") -> CostSet:
    """What a service has measured and corrected, in the form of the file."""
    order = sorted(
        costs.measured, key=lambda key: (key.model, key.stage, key.tokens, key.width, key.conditions)
    )
    return CostSet(
        name=name,
        hardware="measured by the service",
        sources=("measured by the running service, corrected while it served",),
        fingerprint=fingerprint,
        interpolation="tokens",
        migration=costs.moves.assumed,
        moves=tuple(_moves_of(costs)),
        memory_bytes=costs.memory.limit_bytes,
        resident_bytes=costs.memory.resident_bytes,
        sizes=sizes,
        tasks=tuple(_task_of(costs, key) for key in order),
    )


def _task_of(costs: CostTable, key: CostKey) -> TaskCost:
    return TaskCost(
        stage=key.stage.value,
        tokens=key.tokens,
        width=key.width,
        batch=key.batch,
        conditions=key.conditions,
        model=key.model,
        seconds=costs.usual_s(key),
        p90_s=costs.safe_s(key),
        peak_bytes=costs.memory.peaks.get(key),
    )


def _moves_of(costs: CostTable) -> Iterator[MoveCost]:
    for (source, rank), sizes in sorted(costs.moves.measured.items()):
        for state_bytes in sorted(sizes):
            seconds = costs.moves.corrected((source, rank), state_bytes)
            yield MoveCost(source=source, rank=rank, state_bytes=state_bytes, seconds=seconds)
