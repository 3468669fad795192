"""Cost sets: what tasks cost on some hardware, with the sizes that are drawn there, from a source that is named.

Published ones are in `epe.simulator.published`; a file of the same form comes from a service or from a hand
(docs/simulator.md). A size outside a set's range is refused, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from epe.errors import BadSetting
from epe.families import family
from epe.messages import Stage
from epe.planning.costs import CostKey, CostTable, Migration, Workload
from epe.planning.work import cost_key

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


class TaskCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured seconds of one task (for denoising, of one step) on a lane of `width` ranks."""

    stage: Literal["encode", "denoise", "decode"]
    tokens: Count
    width: Count = 1
    seconds: Seconds
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

    @property
    def makes(self) -> str:
        return family(self.family).makes

    @property
    def workload(self) -> Workload:
        shape = {"height": self.height, "width": self.width, "num_frames": self.num_frames}
        kind = family(self.family)
        return Workload(
            tokens=kind.num_tokens(**shape),
            conditions=self.conditions,
            state_bytes=kind.state_bytes(**shape),
            model=self.model,
        )


class CostSet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """All that the simulator knows of a machine.

    `interpolation` says what holds between the sizes of the rows: `none`, or `tokens`: a straight line in
    log(tokens), log(seconds) through the two rows next to it, for each model, stage, width and conditions;
    never beyond the smallest and largest row. An encode or decode on more ranks than any row has costs what
    the widest row says. `finish_s` is the time from the decoded picture to the encoded file, off the ranks.
    """

    name: str
    hardware: str = ""
    sources: tuple[str, ...] = ()
    fingerprint: str = ""
    interpolation: Literal["none", "tokens"] = "none"
    migration: Migration = Migration()
    finish_s: Annotated[float, Meta(ge=0)] = 0.0
    sizes: Annotated[tuple[Size, ...], Meta(min_length=1)]
    tasks: Annotated[tuple[TaskCost, ...], Meta(min_length=1)]

    def widths(self, world_size: int) -> tuple[int, ...]:
        """Lane widths of at most `world_size` ranks for which every size has a step cost."""
        known = [{width for width, _ in self._rows(size.workload, Stage.DENOISE)} for size in self.sizes]
        return tuple(sorted(width for width in set.intersection(*known) if width <= world_size))

    def table(self, workloads: Iterable[Workload], *, world_size: int) -> CostTable:
        """Seconds of every task of these workloads at every known width; raises `BadSetting` for one not covered."""
        measured: dict[CostKey, float] = {}
        for workload in sorted(set(workloads), key=lambda each: (each.model, each.tokens, each.conditions)):
            if fault := self.fault(workload):
                raise BadSetting(fault, path=self.name)
            measured |= self._tasks(workload, world_size)
        return CostTable(measured, migration=self.migration)

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
        for stage in (Stage.ENCODE, Stage.DENOISE, Stage.DECODE):
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


def read_cost_set(path: str) -> CostSet:
    """A cost set from a JSON file; raises `BadSetting` naming file and field."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=CostSet)
    except OSError as error:
        raise BadSetting(f"cannot be read ({error.strerror})", path=path) from error
    except msgspec.DecodeError as error:
        raise BadSetting(f"is no cost set: {error}", path=path) from error
    check_cost_set(found, path=path)
    return found


def check_cost_set(given: CostSet, *, path: str) -> None:
    """Raises `BadSetting` for rows that contradict each other and for sizes without costs."""
    seen: set[CostKey] = set()
    for index, task in enumerate(given.tasks):
        if task.key in seen:
            raise BadSetting("this task has two costs", path=f"{path}: tasks[{index}]")
        seen.add(task.key)
    for index, size in enumerate(given.sizes):
        family(size.family, path=f"{path}: sizes[{index}].family")
        if fault := given.fault(size.workload):
            raise BadSetting(fault, path=f"{path}: sizes[{index}]")
    if 1 not in given.widths(1):
        raise BadSetting("every size needs a denoise cost at width 1", path=f"{path}: tasks")


def cost_set_of(costs: CostTable, *, name: str, sizes: tuple[Size, ...], fingerprint: str = "") -> CostSet:
    """What a service has measured and corrected, in the form of the file."""
    tasks = tuple(
        TaskCost(
            stage=key.stage.value,  # type: ignore[arg-type]
            tokens=key.tokens,
            width=key.width,
            batch=key.batch,
            conditions=key.conditions,
            model=key.model,
            seconds=costs.seconds(key),
        )
        for key in sorted(costs.measured, key=lambda key: (key.stage, key.model, key.tokens, key.width))
    )
    return CostSet(
        name=name,
        hardware="measured by the service",
        sources=("measured by the running service, corrected while it served",),
        fingerprint=fingerprint,
        interpolation="tokens",
        migration=costs.migration,
        sizes=sizes,
        tasks=tasks,
    )
