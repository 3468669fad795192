"""What each width makes of each workload, asked of the cost table once a plan. Times are seconds."""

from __future__ import annotations

from epe.messages import Stage
from epe.planning.costs import CostTable, Workload
from epe.planning.view import TrajectoryView
from epe.planning.work import cost_key


class Speed:
    """One workload: the widths that it may have and what a task of it takes at each.

    `ladder` holds only widths that are faster than every narrower one, so its last is the fastest;
    `thrifty` is the width that spends the fewest rank-seconds on a step, the narrowest of equals. `guessed` says
    that no step of any workload was measured yet.
    """

    def __init__(self, costs: CostTable, workload: Workload, *, widths: tuple[int, ...]) -> None:
        self._costs = costs
        self._workload = workload
        self._task_s: dict[tuple[Stage, int], float] = {}
        self._step_s: dict[int, float] = {}
        self._excess_s: dict[int, float] = {}
        self.widths = workload.widths(widths, limit=max(widths))
        self.guessed = costs.guesses(cost_key(workload, Stage.DENOISE, 1))
        self.encode_s = self.task_s(Stage.ENCODE, 1)
        self.decode_s = self.task_s(Stage.DECODE, 1)
        ladder = [self.widths[0]]
        for width in self.widths[1:]:
            if self.step_s(width) < self.step_s(ladder[-1]):
                ladder.append(width)
        self.ladder = tuple(ladder)
        self.fastest = ladder[-1]
        self.thrifty = min(ladder, key=lambda width: (width * self.step_s(width), width))

    def step_s(self, width: int) -> float:
        """Seconds of one step."""
        seconds = self._step_s.get(width)
        if seconds is None:
            seconds = self._step_s[width] = self.task_s(Stage.DENOISE, width)
        return seconds

    def task_s(self, stage: Stage, width: int) -> float:
        """Seconds of a task; also at a width that is not allowed (a lane that another policy left behind)."""
        seconds = self._task_s.get((stage, width))
        if seconds is None:
            seconds = self._costs.seconds(cost_key(self._workload, stage, width))
            self._task_s[stage, width] = seconds
        return seconds

    def within(self, limit: int) -> tuple[int, ...]:
        """The part of the ladder that is no wider than `limit`."""
        return tuple(width for width in self.ladder if width <= limit)

    def efficiency(self, width: int) -> float:
        """The share of `width` ranks' time that the narrowest width would have needed too."""
        narrow = self.ladder[0]
        return narrow * self.step_s(narrow) / (width * self.step_s(width))

    def remaining_s(self, trajectory: TrajectoryView, width: int) -> float:
        """Seconds until the decoded picture when all steps that are left run at `width`."""
        stage = trajectory.stage
        if stage is Stage.DENOISE:
            return trajectory.num_computed_left * self.step_s(width) + self.decode_s
        if stage is Stage.ENCODE:
            return self.encode_s + trajectory.num_computed_left * self.step_s(width) + self.decode_s
        return self.decode_s

    def safe_remaining_s(self, trajectory: TrajectoryView, width: int) -> float:
        """As `remaining_s`, with steps that take as long as nine of ten do at most: for asking whether a deadline can
        be met."""
        usual_s = self.remaining_s(trajectory, width)
        if trajectory.stage is Stage.DECODE:
            return usual_s
        excess_s = self._excess_s.get(width)
        if excess_s is None:
            safe_s = self._costs.safe_s(cost_key(self._workload, Stage.DENOISE, width))
            excess_s = self._excess_s[width] = safe_s - self.step_s(width)
        return usual_s + trajectory.num_computed_left * excess_s

    def best_s(self, trajectory: TrajectoryView) -> float:
        """Seconds until the decoded picture at the fastest width."""
        return self.remaining_s(trajectory, self.fastest)

    def whole_s(self, trajectory: TrajectoryView) -> float:
        """Seconds from its arrival to the decoded picture at the fastest width."""
        return self.encode_s + trajectory.num_computed_whole * self.step_s(self.fastest) + self.decode_s


class Speeds:
    """The speeds of all workloads that one plan meets; `widths` are the allowed ones that fit into the world."""

    def __init__(self, costs: CostTable, *, widths: tuple[int, ...], world: int) -> None:
        self._costs = costs
        self._widths = tuple(width for width in widths if width <= world) or (1,)
        self._known: dict[Workload, Speed] = {}

    def of(self, trajectory: TrajectoryView) -> Speed:
        """The speed of this request's tasks."""
        speed = self._known.get(trajectory.workload)
        if speed is None:
            speed = Speed(self._costs, trajectory.workload, widths=self._widths)
            self._known[trajectory.workload] = speed
        return speed
