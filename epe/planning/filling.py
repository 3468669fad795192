"""Which deadlines can be met together, and how wide each request must run now for that.

Progressive filling (as for elastic training jobs in ElasticFlow, ASPLOS'23): in deadline order each request
takes the width with the fewest rank-seconds that still ends in time, with a margin where there is room for one, in
what the earlier ones have left.
Where one does not fit, the request whose removal frees most is given up instead (Moore and Hodgson's rule),
so that one hopeless request does not push others over their deadlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from epe.messages import Stage
from epe.planning.pace import Pace
from epe.planning.view import TrajectoryView

# A request whose steps have begun is given up for another one only if it takes so many times as much: half of it may be
# done already, and an exchange of equals would throw that away. One that has not begun has nothing to lose.
WORTH_BREAKING = 2.0


@dataclass(frozen=True, slots=True)
class Option:
    """One width for what is left of a request: seconds that it takes, and rank-seconds that it uses."""

    width: int
    seconds: float
    rank_seconds: float


@dataclass(frozen=True, slots=True)
class Job:
    """What is left of a request until its deadline: its steps must run between `start_s` and `end_s`, rather
    `guard_s` before. `options` are its useful widths, cheapest first; at the fastest it may wait until `latest_s`."""

    trajectory: TrajectoryView
    start_s: float
    end_s: float
    latest_s: float
    guard_s: float
    options: tuple[Option, ...]

    @property
    def rank_seconds(self) -> float:
        """What it takes at least."""
        return self.options[0].rank_seconds

    @property
    def has_begun(self) -> bool:
        return self.trajectory.stage is not Stage.ENCODE and self.trajectory.step > 0


def job_of(
    trajectory: TrajectoryView,
    pace: Pace,
    *,
    now_s: float,
    guard_s: float = 0.0,
    width: int | None = None,
    patience_s: float = float("inf"),
) -> Job:
    """The window in which the steps of a request must run: after its leases and its encode, before its decode; or
    the window of the decode, if only that is left. `width`: the only one that its steps may have; else they are no
    longer than `patience_s`, if a lane can do that without waste.

    The guard counts for half of what there is to spare at most: a short deadline is not hopeless because it is long.
    """
    encode_s = pace.encode_s if trajectory.stage is Stage.ENCODE else 0.0
    start_s = max(now_s, trajectory.ready_s) + encode_s
    end_s = trajectory.deadline_s if trajectory.deadline_s is not None else float("inf")
    tasks, ladder = 1, pace.decode
    if trajectory.stage is not Stage.DECODE:
        end_s -= pace.decode_s
        tasks, ladder = trajectory.num_computed_left, pace.cheapest_from(pace.narrowest(patience_s))
        if width is not None:
            ladder = ((width, pace.step_s[width]),)
    options = tuple(Option(width, tasks * each_s, width * tasks * each_s) for width, each_s in ladder)
    latest_s = end_s - options[-1].seconds
    return Job(
        trajectory=trajectory,
        start_s=start_s,
        end_s=end_s,
        latest_s=latest_s - encode_s,
        guard_s=min(guard_s, max(0.0, (latest_s - start_s) / 2)),
        options=options,
    )


class Grid:
    """Free rank-seconds in slots of time: short ones first, growing, so that a long view stays small. `free_s` has when
    each rank will have ended its leases: whatever they are of, nobody else has it before."""

    FIRST_S = 0.25
    GROWTH = 1.35
    MAX_SLOTS = 16

    def __init__(self, free_s: Sequence[float], *, now_s: float, horizon_s: float) -> None:
        self.starts = [now_s]
        length = max(self.FIRST_S, (horizon_s - now_s) * (self.GROWTH - 1) / self.GROWTH**self.MAX_SLOTS)
        while self.starts[-1] < horizon_s and len(self.starts) <= self.MAX_SLOTS:
            self.starts.append(self.starts[-1] + length)
            length *= self.GROWTH
        self.free = [
            sum(max(0.0, end_s - max(start_s, rank_s)) for rank_s in free_s)
            for start_s, end_s in pairwise(self.starts)
        ]

    def take(self, job: Job, option: Option, *, end_s: float) -> list[float] | None:
        """Rank-seconds of each slot that the job would use at this width; None if it would end after `end_s`."""
        starts, start_s, width, needed = self.starts, job.start_s, option.width, option.rank_seconds
        if needed > width * (end_s - start_s) + 1e-9:
            return None
        used = [0.0] * len(self.free)
        for slot, free in enumerate(self.free):
            length = min(starts[slot + 1], end_s) - max(starts[slot], start_s)
            if length > 0:
                used[slot] = taken = min(needed, free, width * length)
                needed -= taken
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
class Kept:
    """A request that can be in time with the others that are kept, at the width of `option`."""

    job: Job
    option: Option
    used: list[float]


@dataclass(frozen=True, slots=True)
class Filled:
    """Those that can be in time together, most urgent first, and those that are given up."""

    kept: list[Kept]
    given_up: list[Job]


def fill(jobs: Sequence[Job], free_s: Sequence[float], *, now_s: float) -> Filled:
    """Fill the deadlines of `jobs` (in deadline order) into the ranks, each from when it is free: with their guards, if
    no more are given up for these."""
    guarded = _fill(jobs, free_s, now_s=now_s, guarded=True)
    if not guarded.given_up:
        return guarded
    bare = _fill(jobs, free_s, now_s=now_s, guarded=False)
    return bare if len(bare.kept) > len(guarded.kept) else guarded


def _fill(jobs: Sequence[Job], free_s: Sequence[float], *, now_s: float, guarded: bool) -> Filled:
    grid = Grid(free_s, now_s=now_s, horizon_s=max((job.end_s for job in jobs), default=now_s))
    kept: list[Kept] = []
    given_up: list[Job] = []
    for job in jobs:
        fits = _fit(grid, job, guarded=guarded)
        if fits is None and (victim := _costliest(kept, job)) is not None:
            grid.give_back(victim.used)
            fits = _fit(grid, job, guarded=guarded)
            if fits is None:
                grid.use(victim.used)
            else:
                kept.remove(victim)
                given_up.append(victim.job)
        if fits is None:
            given_up.append(job)
        else:
            grid.use(fits.used)
            kept.append(fits)
    return Filled(kept, given_up)


def _fit(grid: Grid, job: Job, *, guarded: bool) -> Kept | None:
    """The cheapest width at which the job still ends in time, if possible with its guard."""
    for end_s in (job.end_s - job.guard_s, job.end_s) if guarded and job.guard_s else (job.end_s,):
        for option in job.options:
            if (used := grid.take(job, option, end_s=end_s)) is not None:
                return Kept(job, option, used)
    return None


def _costliest(kept: Sequence[Kept], job: Job) -> Kept | None:
    """The kept job that would free most, if that is worth more than what giving up `job` itself would free."""
    costliest = max(kept, key=_worth, default=None)
    return costliest if costliest is not None and _worth(costliest) > job.rank_seconds else None


def _worth(kept: Kept) -> float:
    """The rank-seconds that giving it up frees, as far as they count."""
    return kept.job.rank_seconds / (WORTH_BREAKING if kept.job.has_begun else 1.0)
