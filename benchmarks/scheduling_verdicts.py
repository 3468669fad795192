"""From runs to verdicts: our planner against the best tuned baseline of each cell, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from msgspec import Struct
from scheduling_cells import Cell
from scheduling_entrants import CLAIRVOYANT, OURS, Entrant
from scheduling_runs import Line

from epe.simulator.bounds import Bound
from epe.simulator.metrics import Metrics, interval, mean_classes

# What is asked for: shares of one, and points of a hundred.
WITHIN_OR_ABOVE = 0.95
AT_MOST_BELOW = 0.02
SHORT_OF_BOUND = 0.03
SHARE_OF_SHORTFALL = 0.5

FIELDS = {"slo_attainment": "in time", "weighted_goodput": "weighted goodput"}


class Lines:
    """The lines of one program's runs, by cell and entrant; each a value for every seed."""

    def __init__(self, lines: Sequence[Line], *, num_requests: int) -> None:
        self._by_place: dict[tuple[str, str, str], dict[int, Line]] = {}
        for line in lines:
            if line.job.num_requests == num_requests:
                place = (line.job.cell, *_names(line.job.entrant))
                seeds = self._by_place.setdefault(place, {})
                seeds[line.job.seed] = _tighter(seeds.get(line.job.seed), line)

    def of(self, cell: str, entrant: Entrant | None) -> dict[int, Line]:
        """By seed; the bound is what has no entrant."""
        return self._by_place.get((cell, *_names(entrant)), {})

    def values(self, cell: str, entrant: Entrant, field: str) -> dict[int, float]:
        """A field of the metrics by seed."""
        return {seed: float(getattr(_metrics(line), field)) for seed, line in self.of(cell, entrant).items()}

    def classes(self, cell: str, entrant: Entrant) -> dict[str, float]:
        """The share in time of each class of requests, the mean over the seeds."""
        means = mean_classes([line.classes for line in self.of(cell, entrant).values()])
        return {name: each.slo_attainment for name, each in means.items()}

    def bound(self, cell: str) -> float | None:
        """The mean over the seeds of what nobody can pass."""
        lines = self.of(cell, None).values()
        shares = [line.bound.slo_attainment for line in lines if line.bound]
        known = [share for share in shares if share is not None]
        return fmean(known) if known else None

    def mean(self, cell: str, entrant: Entrant, field: str) -> float | None:
        values = self.values(cell, entrant, field)
        return fmean(values.values()) if values else None

    def clairvoyant(self, cell: str, field: str) -> float | None:
        """The mean of our own planner, and what it gains by knowing the future on the seeds on which both were run."""
        ours, knowing = self.values(cell, OURS, field), self.values(cell, CLAIRVOYANT, field)
        gains = [value - ours[seed] for seed, value in knowing.items() if seed in ours]
        return fmean(ours.values()) + fmean(gains) if gains else None


class Compared(Struct, frozen=True, kw_only=True):
    """One field in one cell. `low` and `high` are the 95 % interval of the difference, paired by seed."""

    cell: str
    ours: float
    best: float
    best_name: str
    low: float
    high: float
    num_seeds: int
    num_baselines: int
    bound: float | None = None
    clairvoyant: float | None = None

    @property
    def difference(self) -> float:
        return self.ours - self.best

    @property
    def within_or_above(self) -> bool:
        """Not below by more than chance."""
        return self.high >= 0

    @property
    def shortfall(self) -> float | None:
        """How far the best baseline is from the bound, where that is more than 3 points."""
        if self.bound is None or self.bound - self.best <= SHORT_OF_BOUND:
            return None
        return self.bound - self.best


class Verdict(Struct, frozen=True, kw_only=True):
    """What was asked for, what is, and whether it is reached (None: nothing to judge)."""

    asked: str
    found: str
    reached: bool | None


def compare(lines: Lines, cell: Cell, baselines: Sequence[Entrant], field: str) -> Compared | None:
    """Against the baseline with the largest mean; None before both have run on two seeds at least."""
    ours = lines.values(cell.name, OURS, field)
    rivals = [(entrant, lines.values(cell.name, entrant, field)) for entrant in baselines]
    rivals = [(entrant, values) for entrant, values in rivals if len(values) > 1 and set(values) == set(ours)]
    if not rivals:
        return None
    best, values = max(rivals, key=lambda each: fmean(each[1].values()))
    low, high = interval([ours[seed] - values[seed] for seed in sorted(ours)])
    attains = field == "slo_attainment"
    return Compared(
        cell=cell.name,
        ours=fmean(ours.values()),
        best=fmean(values.values()),
        best_name=best.name,
        low=low,
        high=high,
        num_seeds=len(ours),
        num_baselines=len(rivals),
        bound=lines.bound(cell.name) if attains else None,
        clairvoyant=lines.clairvoyant(cell.name, field),
    )


def judge(compared: Sequence[Compared], *, field: str) -> list[Verdict]:
    """The lines of the issue, for one field."""
    if not compared:
        return []
    what = FIELDS[field]
    inside = sum(each.within_or_above for each in compared)
    worst = min(compared, key=lambda each: each.difference)
    verdicts = [
        Verdict(
            asked=f"{what}: within or above the interval in {WITHIN_OR_ABOVE:.0%} of the cells",
            found=f"{inside} of {len(compared)}",
            reached=inside >= WITHIN_OR_ABOVE * len(compared),
        ),
        Verdict(
            asked=f"{what}: never more than {100 * AT_MOST_BELOW:.0f} points below",
            found=f"at worst {100 * worst.difference:+.1f} points ({worst.cell})",
            reached=worst.difference >= -AT_MOST_BELOW,
        ),
    ]
    return verdicts if field == "weighted_goodput" else [*verdicts, _judge_shortfall(compared)]


def _judge_shortfall(compared: Sequence[Compared]) -> Verdict:
    """Of the cells where the best baseline is well short of the bound."""
    asked = f"at most {SHARE_OF_SHORTFALL:.0%} of the best baseline's shortfall from the bound, in the mean"
    short = [each for each in compared if each.shortfall is not None]
    if not short:
        return Verdict(asked=asked, found="no cell has such a shortfall", reached=None)
    theirs = _mean(short, lambda each: each.shortfall or 0.0)
    ours = _mean(short, lambda each: (each.bound or 0.0) - each.ours)
    found = f"{ours / theirs:.0%} ({100 * ours:.1f} of {100 * theirs:.1f} points over {len(short)} cells)"
    return Verdict(asked=asked, found=found, reached=ours <= SHARE_OF_SHORTFALL * theirs)


def _mean(compared: Sequence[Compared], value: Callable[[Compared], float]) -> float:
    return fmean(map(value, compared))


def _tighter(known: Line | None, line: Line) -> Line:
    """The later line; of two bounds, found in more and in less time, the lower one: both hold."""
    if known is None or known.bound is None or line.bound is None:
        return line
    return known if _most(known.bound) < _most(line.bound) else line


def _most(bound: Bound) -> float:
    return 1.0 if bound.slo_attainment is None else bound.slo_attainment


def _metrics(line: Line) -> Metrics:
    assert line.metrics is not None
    return line.metrics


def _names(entrant: Entrant | None) -> tuple[str, str]:
    """What tells entrants apart: static lanes of two widths have one name."""
    return ("bound", "") if entrant is None else (entrant.name, f"{entrant.policy} {entrant.settings}")
