"""The default policy: widths change while requests run, wherever that makes the queue end better.

A layout is thought out over the whole pool, as if every rank were free; then what can start is started.
Only lanes that exchange ranks wait for each other; the others run through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from epe.messages import Stage
from epe.planning.costs import CostTable
from epe.planning.forecast import fastest_width, play
from epe.planning.order import by_urgency
from epe.planning.view import MAX_LEASES, Assignment, TrajectoryView, View
from epe.planning.work import remaining_s, steps_for


@dataclass(frozen=True, kw_only=True)
class ElasticSettings:
    """What the stage file says about the elastic policy; times in seconds."""

    widths: tuple[int, ...]
    pulse_s: float = 0.05
    pulse_steps: int = 1
    starvation_s: float = 30.0
    deadline_guard_s: float = 0.0
    min_resize_gain_s: float = 0.0
    resize_hysteresis_s: float = 0.0
    resize_control_cost_s: float = 0.0
    switch_allowed_until_step: int | None = None
    # Work per layout is bounded whatever the length of the queue.
    max_looked_at: int = 32


Layout = tuple[tuple[TrajectoryView, int], ...]
Score = tuple[float, ...]


class Elastic:
    """Compares a bounded number of layouts: starved requests, deadlines missed, tardiness, then the summed
    latency of the queue with what moving costs, then idle ranks."""

    def __init__(self, settings: ElasticSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        set_ = self.settings
        order = by_urgency(view, set_.widths, starvation_s=set_.starvation_s, guard_s=set_.deadline_guard_s)[
            : set_.max_looked_at
        ]
        if not order:
            return ()
        layout = min(self._candidates(view, order), key=lambda layout: self._score(view, order, layout))
        return tuple(self._started(view, placed(view, layout)))

    def _candidates(self, view: View, order: list[TrajectoryView]) -> Iterator[Layout]:
        """The first k requests at their narrowest width, then widened while ranks are left; for every k.
        The first candidate keeps the widths of what runs, and so wins where nothing better is found."""
        num_ranks = len(view.ranks)
        running = [t for t in order if t.lane]
        kept = [(t, len(t.lane)) for t in running if t.stage is Stage.DENOISE]
        narrow = [(t, self._options(view, t)[0]) for t in order if (t, len(t.lane)) not in kept]
        yield self._filled(view, _fitting(kept + narrow, num_ranks), may_widen=False)
        yield self._filled(view, _fitting(kept + narrow, num_ranks))
        for count in range(1, min(len(order), num_ranks) + 1):
            first = [(t, self._options(view, t)[0]) for t in order[:count]]
            yield self._filled(view, _fitting(first, num_ranks))

    def _filled(self, view: View, layout: Layout, *, may_widen: bool = True) -> Layout:
        """Give the ranks that are left to whoever gains most seconds by each."""
        widths = {t.request_id: width for t, width in layout}
        spare = len(view.ranks) - sum(widths.values())
        while may_widen and spare > 0:
            steps = [
                (self._gain(view, t, widths[t.request_id], wider), t, wider)
                for t, _ in layout
                for wider in self._options(view, t)
                if widths[t.request_id] < wider <= widths[t.request_id] + spare
            ]
            gain, trajectory, wider = max(steps, key=lambda step: step[0], default=(0.0, None, 0))
            if trajectory is None or gain <= 0:
                break
            spare -= wider - widths[trajectory.request_id]
            widths[trajectory.request_id] = wider
        return tuple((t, widths[t.request_id]) for t, _ in layout)

    def _gain(self, view: View, trajectory: TrajectoryView, width: int, wider: int) -> float:
        """Seconds saved for each rank that is added."""
        saved = remaining_s(view.costs, trajectory, width) - remaining_s(view.costs, trajectory, wider)
        if wider != len(trajectory.lane) and trajectory.lane:
            saved -= self.settings.min_resize_gain_s + self.settings.resize_hysteresis_s
        return saved / (wider - width)

    def _options(self, view: View, trajectory: TrajectoryView) -> tuple[int, ...]:
        """The widths that this request's next lease may have."""
        if trajectory.stage is not Stage.DENOISE:
            return (1,)
        cut_off = self.settings.switch_allowed_until_step
        if cut_off is not None and trajectory.step >= cut_off and trajectory.step > 0:
            return (len(trajectory.lane),)
        limit = min(len(view.ranks), trajectory.workload.max_width)
        usable = tuple(width for width in self.settings.widths if width <= limit)
        return usable or (1,)

    def _score(self, view: View, order: list[TrajectoryView], layout: Layout) -> Score:
        ends = self._ends(view, order, layout)
        inside = {t.request_id for t, _ in layout}
        starved = sum(
            t.unserved_s(view.now_s) > self.settings.starvation_s and t.request_id not in inside
            for t in order
        )
        late = [max(0.0, end - t.deadline_s) for t, end in ends if t.deadline_s is not None]
        flow = sum(end - view.now_s for _, end in ends)
        moving = sum(self._moving_s(view.costs, t, width) for t, width in layout)
        idle = len(view.ranks) - sum(width for _, width in layout)
        return (starved, sum(x > 0 for x in late), sum(late), flow + moving, idle)

    def _ends(
        self, view: View, order: list[TrajectoryView], layout: Layout
    ) -> list[tuple[TrajectoryView, float]]:
        """Each request's finish when the layout runs now and the rest of the queue after it."""
        widths = {t.request_id: width for t, width in layout}
        first = [t for t in order if t.request_id in widths]
        rest = [t for t in order if t.request_id not in widths]
        jobs = [
            (
                widths[t.request_id],
                remaining_s(view.costs, t, self._later_width(view, t, widths[t.request_id])),
            )
            for t in first
        ]
        for trajectory in rest:
            width = fastest_width(view.costs, trajectory, self.settings.widths)
            width = min(width, max(1, len(view.ranks) // max(1, len(rest))))
            jobs.append((width, remaining_s(view.costs, trajectory, width)))
        free = [view.now_s for _ in view.ranks]
        return list(zip(first + rest, play(free, jobs), strict=True))

    def _later_width(self, view: View, trajectory: TrajectoryView, width: int) -> int:
        """An encode runs on one rank, but its steps need not."""
        if trajectory.stage is Stage.ENCODE:
            return fastest_width(view.costs, trajectory, self.settings.widths)
        return width

    def _moving_s(self, costs: CostTable, trajectory: TrajectoryView, width: int) -> float:
        """What changing the lane costs."""
        if not trajectory.lane or width == len(trajectory.lane) or trajectory.stage is not Stage.DENOISE:
            return 0.0
        control = self.settings.resize_control_cost_s + self.settings.resize_hysteresis_s
        return control + costs.migration_s(trajectory.workload.state_bytes)

    def _started(
        self, view: View, lanes: list[tuple[TrajectoryView, tuple[int, ...]]]
    ) -> Iterator[Assignment]:
        """The part of a layout that can be leased now."""
        for trajectory, ranks in lanes:
            if trajectory.num_leases < MAX_LEASES and view.open_ranks.issuperset(ranks):
                yield Assignment(
                    request_id=trajectory.request_id,
                    ranks=ranks,
                    num_steps=steps_for(
                        view.costs,
                        trajectory,
                        len(ranks),
                        pulse_s=self.settings.pulse_s,
                        pulse_steps=self.settings.pulse_steps,
                    ),
                )


def _fitting(wanted: list[tuple[TrajectoryView, int]], num_ranks: int) -> Layout:
    """The longest beginning of a list of widths that fits into the pool."""
    layout: list[tuple[TrajectoryView, int]] = []
    for trajectory, width in wanted:
        if width <= num_ranks:
            layout.append((trajectory, width))
            num_ranks -= width
    return tuple(layout)


def placed(view: View, layout: Layout) -> list[tuple[TrajectoryView, tuple[int, ...]]]:
    """Ranks for the widths of a layout: a lane that keeps its width keeps its ranks; the others take ranks
    that hold their state, then those that are free first."""
    free = {rank.rank: rank.free_s for rank in view.ranks}
    lanes: dict[str, tuple[int, ...]] = {}
    for trajectory, width in layout:
        if len(trajectory.lane) == width and free.keys() >= set(trajectory.lane):
            lanes[trajectory.request_id] = trajectory.lane
            for rank in trajectory.lane:
                del free[rank]
    for trajectory, width in layout:
        if trajectory.request_id not in lanes:
            holders = set(trajectory.holders)
            nearest = sorted(free, key=lambda rank: (rank not in holders, free[rank], rank))[:width]
            lanes[trajectory.request_id] = tuple(sorted(nearest))
            for rank in nearest:
                del free[rank]
    return [(trajectory, lanes[trajectory.request_id]) for trajectory, _ in layout]
