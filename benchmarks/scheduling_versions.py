"""Which runs of the page are of older code than what is here, and whether that can matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scheduling_cells import Cell
from scheduling_entrants import OURS, Entrant
from scheduling_jobs import Effort
from scheduling_runs import Line, is_outdated
from scheduling_verdicts import FIELDS, Lines

MARK = "*"


def told(lines: Sequence[Line], found: Lines, effort: Effort) -> str:
    """How many runs are of older code; and, if some of baselines in the cells are, how near to the best they come."""
    runs = [line for line in lines if line.job.entrant is not None]
    whose = {
        "`elastic`": [line for line in runs if line.job.entrant == OURS],
        "the others": [line for line in runs if line.job.entrant != OURS],
    }
    counts = [(sum(map(is_outdated, each)), len(each), name) for name, each in whose.items()]
    older = [f"{older} of {total} runs of {name}" for older, total, name in counts if older]
    if not older:
        return ""
    return f" Modules of the planner or the simulator were changed after {' and '.join(older)}.{_near(found, effort)}"


def is_older(found: Lines, cell: Cell, entrant: Entrant) -> bool:
    """Whether some of the runs of an entrant in a cell are."""
    return any(map(is_outdated, found.of(cell.name, entrant).values()))


def _near(found: Lines, effort: Effort) -> str:
    """Who of the baselines that are older is least behind the best one of a cell."""
    behind = [each for cell in effort.cells for each in _behind(found, cell, effort.baselines(cell.name))]
    if not behind:
        return ""
    least, name, cell_name = min(behind)
    return (
        f" Baselines of an older simulator stand with a {MARK} under [every scheduler](#every-scheduler): each is "
        f"{100 * least:.1f} points or more behind the best of its cell, in requests and in work ({name}, {cell_name})."
    )


def _behind(found: Lines, cell: Cell, baselines: Sequence[Entrant]) -> Iterator[tuple[float, str, str]]:
    """By how much each older baseline lacks the mean of the best one: in requests or in work, whichever is less."""
    run = [each for each in baselines if found.of(cell.name, each)]
    means = {field: [found.mean(cell.name, each, field) or 0.0 for each in run] for field in FIELDS}
    for place, each in enumerate(run):
        if is_older(found, cell, each):
            yield min(max(shares) - shares[place] for shares in means.values()), each.name, cell.name
