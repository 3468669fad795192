"""Which runs of the page are of other code than what is here, and whether that can matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace
from scheduling_cells import Cell
from scheduling_entrants import OURS, Entrant
from scheduling_jobs import Effort
from scheduling_runs import Line, is_outdated
from scheduling_verdicts import FIELDS, Lines

MARK = "*"
# So many runs of a version that were made anew must have given the same, and none another figure.
ENOUGH = 10

# Of the simulator, and of our planner where it had a part in the run.
Version = tuple[str, str]


class Versions:
    """The versions that made `lines`, and which of them give the same as the code that is here: by `again`, runs that
    were made anew."""

    def __init__(self, lines: Mapping[bytes, Line], again: Mapping[bytes, Line]) -> None:
        self.runs = [line for line in lines.values() if line.job.entrant is not None]
        anew = [(lines[key], line) for key, line in again.items() if key in lines and not is_outdated(line)]
        equal: dict[Version, list[bool]] = {}
        for line, other in anew:
            if is_outdated(line):
                equal.setdefault(_version(line), []).append(gave_the_same(line, other))
        self._same = {version for version, each in equal.items() if len(each) >= ENOUGH and all(each)}
        self.num_same = sum(len(equal[version]) for version in self._same)

    def is_older(self, line: Line) -> bool:
        """Whether the code that is here may give something else."""
        return is_outdated(line) and _version(line) not in self._same

    def is_older_of(self, found: Lines, cell: Cell, entrant: Entrant) -> bool:
        """Whether that holds for some of the runs of an entrant in a cell."""
        return any(map(self.is_older, found.of(cell.name, entrant).values()))

    def told(self, found: Lines, effort: Effort) -> str:
        """How many runs are of other code, what is known of it, and how near older baselines come to the best."""
        changed = sum(map(is_outdated, self.runs))
        if not changed:
            return ""
        told = (
            f" The code of the planner or the simulator was changed after {changed} of {len(self.runs)} runs."
        )
        if self._same:
            told += f" Of them {self.num_same} were made anew and gave the same: their versions count as this one."
        older = [line for line in self.runs if self.is_older(line)]
        ours = sum(line.job.entrant == OURS for line in older)
        told += f" {len(older)} runs are of older versions, {ours} of `elastic` among them."
        return told + self._near(found, effort)

    def _near(self, found: Lines, effort: Effort) -> str:
        """Who of the baselines that are older is least behind the best one of a cell."""
        behind = [
            each for cell in effort.cells for each in self._behind(found, cell, effort.baselines(cell.name))
        ]
        if not behind:
            return ""
        least, name, cell_name = min(behind)
        return (
            f" Baselines of older versions stand with a {MARK} under [every scheduler](#every-scheduler): each is "
            f"{100 * least:.1f} points or more behind the best of its cell, in requests and in work "
            f"({name}, {cell_name})."
        )

    def _behind(
        self, found: Lines, cell: Cell, baselines: Sequence[Entrant]
    ) -> Iterator[tuple[float, str, str]]:
        """By how much each older baseline lacks the mean of the best one: in requests or in work, the smaller."""
        run = [each for each in baselines if found.of(cell.name, each)]
        means = {field: [found.mean(cell.name, each, field) or 0.0 for each in run] for field in FIELDS}
        for place, each in enumerate(run):
            if self.is_older_of(found, cell, each):
                yield min(max(shares) - shares[place] for shares in means.values()), each.name, cell.name


def gave_the_same(line: Line, other: Line) -> bool:
    """Every figure but what plans took on this machine."""
    assert line.metrics is not None
    assert other.metrics is not None
    took = {"plan_ms_p50": 0.0, "plan_ms_p99": 0.0}
    figures = [(replace(each.metrics, **took), each.classes, each.quantiles) for each in (line, other)]
    return figures[0] == figures[1]


def _version(line: Line) -> Version:
    entrant = line.job.entrant
    return line.simulator, line.code if entrant is not None and entrant.policy == "elastic" else ""
