"""How fast a workload's tasks are at each width, asked of the cost table once and kept until it changes.
Times are seconds."""

from __future__ import annotations

from epe.messages import Stage
from epe.planning.costs import CostTable, Workload
from epe.planning.view import TrajectoryView
from epe.planning.work import cost_key

# What a lane must keep of its efficiency to be wide for no other reason than that its steps are short.
SHORTER_EFFICIENCY = 0.8

# (width, seconds), narrow ones first.
Ladder = tuple[tuple[int, float], ...]


class Pace:
    """One workload. `step_s` has what a step usually takes by width, `encode` and `decode` the widths at which these
    stages are faster than at every narrower one, and `cheapest` the widths of steps that no other beats in both
    seconds and rank-seconds, cheapest first (so fastest last), with seconds that nine of ten steps take at most."""

    def __init__(self, costs: CostTable, workload: Workload, *, widths: tuple[int, ...]) -> None:
        self.widths = workload.widths(widths, limit=max(widths))
        keys = {width: cost_key(workload, Stage.DENOISE, width) for width in self.widths}
        self.step_s = {width: costs.seconds(key) for width, key in keys.items()}
        self.guessed = costs.guesses(cost_key(workload, Stage.DENOISE, 1))
        self.encode = _ladder(costs, workload, Stage.ENCODE, widths)
        self.decode = _ladder(costs, workload, Stage.DECODE, widths)
        self.encode_s, self.decode_s = self.encode[-1][1], self.decode[-1][1]
        self.cheapest = cheapest({width: costs.safe_s(key) for width, key in keys.items()})
        self.fastest_s = self.cheapest[-1][1]
        narrow = self.widths[0]
        self.efficiency = {
            width: narrow * self.step_s[narrow] / (width * seconds) for width, seconds in self.step_s.items()
        }

    def ladder(self, stage: Stage) -> Ladder:
        """The widths that a task may have."""
        if stage is Stage.DENOISE:
            return tuple(self.step_s.items())
        return self.encode if stage is Stage.ENCODE else self.decode

    def remaining_s(self, trajectory: TrajectoryView, width: int) -> float:
        """Until the decoded picture, when all steps that are left run at `width`, the other stages at their best."""
        stage = trajectory.stage
        if stage is Stage.DENOISE:
            return trajectory.num_computed_left * self.step_s[width] + self.decode_s
        if stage is Stage.ENCODE:
            return self.encode_s + trajectory.num_computed_left * self.step_s[width] + self.decode_s
        return next((its_s for its, its_s in reversed(self.decode) if its <= width), self.decode_s)

    def best_s(self, trajectory: TrajectoryView) -> float:
        """Until the decoded picture, on an idle world."""
        stage = trajectory.stage
        if stage is Stage.DENOISE:
            return trajectory.num_computed_left * self.fastest_s + self.decode_s
        if stage is Stage.ENCODE:
            return self.encode_s + trajectory.num_computed_left * self.fastest_s + self.decode_s
        return self.decode_s

    def whole_s(self, trajectory: TrajectoryView) -> float:
        """From its arrival to the decoded picture, on an idle world."""
        return self.encode_s + trajectory.num_computed_whole * self.fastest_s + self.decode_s

    def efficiency_of(self, stage: Stage, width: int) -> float:
        """The share of `width` ranks' time that the narrowest width would have needed too."""
        if stage is Stage.DENOISE:
            return self.efficiency[width]
        ladder = self.ladder(stage)
        return ladder[0][1] / (width * dict(ladder)[width])

    def cheapest_from(self, narrowest: int) -> Ladder:
        """`cheapest` without narrower lanes than that; its last one at least."""
        if narrowest == self.widths[0]:
            return self.cheapest
        return tuple(each for each in self.cheapest if each[0] >= narrowest) or self.cheapest[-1:]

    def narrowest(self, patience_s: float) -> int:
        """The narrowest width whose steps end within `patience_s`; of a width that would waste more than
        `SHORTER_EFFICIENCY` allows, the last one before it."""
        narrowest = self.widths[0]
        for width in self.widths[1:]:
            if self.step_s[narrowest] <= patience_s or self.efficiency[width] < SHORTER_EFFICIENCY:
                break
            narrowest = width
        return narrowest

    def brisk_width(self, efficiency: float) -> int:
        """The widest lane of steps that keeps so much of its efficiency."""
        return max(
            (width for width in self.widths if self.efficiency[width] >= efficiency), default=self.widths[0]
        )


def cheapest(seconds: dict[int, float]) -> Ladder:
    """The widths that no other beats in both seconds and rank-seconds, cheapest first."""
    kept: list[tuple[int, float]] = []
    for width, its_s in sorted(seconds.items(), key=lambda each: (each[0] * each[1], each[1])):
        if not kept or its_s < kept[-1][1]:
            kept.append((width, its_s))
    return tuple(kept)


def _ladder(costs: CostTable, workload: Workload, stage: Stage, widths: tuple[int, ...]) -> Ladder:
    """Wider lanes than one rank only where they were measured: a guess would promise what no rank has done."""
    kept = [(1, costs.seconds(cost_key(workload, stage, 1)))]
    for width in widths:
        key = cost_key(workload, stage, width)
        if width > 1 and key in costs.measured and (its_s := costs.seconds(key)) < kept[-1][1]:
            kept.append((width, its_s))
    return tuple(kept)


class Paces:
    """The paces of all workloads on one world."""

    def __init__(self, costs: CostTable, *, widths: tuple[int, ...], num_ranks: int) -> None:
        self._costs = costs
        self._edition = costs.edition
        self._num_ranks = num_ranks
        self._widths = tuple(width for width in widths if width <= num_ranks) or (1,)
        self._known: dict[Workload, Pace] = {}

    def are_of(self, costs: CostTable, *, num_ranks: int) -> bool:
        """Whether they still say what this table says."""
        return costs is self._costs and costs.edition == self._edition and num_ranks == self._num_ranks

    def of(self, trajectory: TrajectoryView) -> Pace:
        pace = self._known.get(trajectory.workload)
        if pace is None:
            pace = Pace(self._costs, trajectory.workload, widths=self._widths)
            self._known[trajectory.workload] = pace
        return pace
