"""Which deadlines can be met together, and how wide each request must run now for that.

Progressive filling (as for elastic training jobs in ElasticFlow, ASPLOS'23): in deadline order each request
takes the width with the fewest rank-seconds that still ends in time in what the earlier ones have left.
Where one does not fit, the request whose removal frees most is given up instead (Moore and Hodgson's rule),
so that one hopeless request does not push others over their deadlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epe.messages import Stage
from epe.planning.costs import CostTable
from epe.planning.view import TrajectoryView
from epe.planning.work import cost_key


@dataclass(frozen=True, slots=True)
class Option:
    """One width for what is left of a request: seconds that its steps take, and rank-seconds that they use."""

    width: int
    seconds: float

    @property
    def rank_seconds(self) -> float:
        return self.width * self.seconds


@dataclass(frozen=True, slots=True)
class Job:
    """What is left of a request until its deadline. `options` are its useful widths, cheapest first."""

    trajectory: TrajectoryView
    start_s: float
    end_s: float
    options: tuple[Option, ...]

    @property
    def hopeless(self) -> bool:
        """Late even at its fastest width on an idle world."""
        return not self.options or self.start_s + self.options[-1].seconds > self.end_s


def job_of(
    trajectory: TrajectoryView, costs: CostTable, *, widths: Sequence[int], now_s: float, guard_s: float = 0.0
) -> Job:
    """The window in which the steps of a request must run: after its leases and its encode, before its decode."""
    start_s = max(now_s, trajectory.ready_s)
    end_s = trajectory.deadline_s if trajectory.deadline_s is not None else float("inf")
    if trajectory.stage is Stage.ENCODE:
        start_s += costs.seconds(cost_key(trajectory.workload, Stage.ENCODE, 1))
    end_s -= costs.seconds(cost_key(trajectory.workload, Stage.DECODE, 1)) + guard_s
    steps = 0 if trajectory.stage is Stage.DECODE else trajectory.num_steps - trajectory.step
    options = [
        Option(width, steps * costs.seconds(cost_key(trajectory.workload, Stage.DENOISE, width)))
        for width in widths
    ]
    return Job(trajectory, start_s, end_s, tuple(useful(options)))


def useful(options: list[Option]) -> list[Option]:
    """Those that no other beats in both seconds and rank-seconds, cheapest first (so fastest last)."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (option.rank_seconds, option.seconds)):
        if not kept or option.seconds < kept[-1].seconds:
            kept.append(option)
    return kept


class Grid:
    """Free rank-seconds in slots of time: short ones first, growing, so that a long view stays small."""

    FIRST_S = 0.25
    GROWTH = 1.35
    MAX_SLOTS = 16

    def __init__(self, num_ranks: int, *, now_s: float, horizon_s: float) -> None:
        self.starts = [now_s]
        length = max(self.FIRST_S, (horizon_s - now_s) * (self.GROWTH - 1) / self.GROWTH**self.MAX_SLOTS)
        while self.starts[-1] < horizon_s and len(self.starts) <= self.MAX_SLOTS:
            self.starts.append(self.starts[-1] + length)
            length *= self.GROWTH
        self.free = [
            num_ranks * (end - start) for start, end in zip(self.starts, self.starts[1:], strict=False)
        ]

    def take(self, job: Job, option: Option) -> list[float] | None:
        """Rank-seconds of each slot that the job would use at this width; None if it would end late."""
        needed = option.rank_seconds
        used = [0.0] * len(self.free)
        for slot, free in enumerate(self.free):
            start_s = max(self.starts[slot], job.start_s)
            length = min(self.starts[slot + 1], job.end_s) - start_s
            if length <= 0:
                if start_s >= job.end_s:
                    break
                continue
            used[slot] = min(needed, free, option.width * length)
            needed -= used[slot]
            if needed <= 1e-9:
                return used
        return None

    def use(self, used: list[float]) -> None:
        """Take these rank-seconds out."""
        self.free = [free - taken for free, taken in zip(self.free, used, strict=True)]

    def give_back(self, used: list[float]) -> None:
        """Undo a `use`."""
        self.free = [free + taken for free, taken in zip(self.free, used, strict=True)]


@dataclass(frozen=True, slots=True)
class Filled:
    """The requests that can be in time together with the width that each needs, most urgent first, and
    those that were given up."""

    kept: tuple[tuple[Job, Option], ...]
    given_up: tuple[Job, ...]


def fill(jobs: Sequence[Job], num_ranks: int, *, now_s: float) -> Filled:
    """Fill the deadlines of `jobs` (in deadline order) into the world."""
    hopeful = [job for job in jobs if not job.hopeless]
    grid = Grid(num_ranks, now_s=now_s, horizon_s=max((job.end_s for job in hopeful), default=now_s))
    kept: list[_Kept] = []
    given_up: list[Job] = []
    for job in hopeful:
        if (fits := _fit(grid, job)) is None and (victim := _costliest(kept, job)) is not None:
            grid.give_back(victim.used)
            if (fits := _fit(grid, job)) is None:
                grid.use(victim.used)
            else:
                kept.remove(victim)
                given_up.append(victim.job)
        if fits is None:
            given_up.append(job)
        else:
            grid.use(fits.used)
            kept.append(fits)
    hopeless = [job for job in jobs if job.hopeless]
    return Filled(tuple((each.job, each.option) for each in kept), (*given_up, *hopeless))


@dataclass(frozen=True, slots=True)
class _Kept:
    job: Job
    option: Option
    used: list[float]


def _fit(grid: Grid, job: Job) -> _Kept | None:
    """The cheapest width at which the job still ends in time."""
    for option in job.options:
        if (used := grid.take(job, option)) is not None:
            return _Kept(job, option, used)
    return None


def _costliest(kept: Sequence[_Kept], job: Job) -> _Kept | None:
    """The kept job that would free most, if that is more than what giving up `job` itself would."""
    costliest = max(kept, key=lambda each: each.job.options[0].rank_seconds, default=None)
    if costliest is None or costliest.job.options[0].rank_seconds <= job.options[0].rank_seconds:
        return None
    return costliest
