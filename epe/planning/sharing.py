"""How requests without a deadline share ranks: a bounded number of layouts, compared by the summed latency
of the queue played forward on the cost table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from epe.messages import Stage
from epe.planning.forecast import fastest_width, play
from epe.planning.giving import Layout
from epe.planning.settings import ElasticSettings
from epe.planning.view import TrajectoryView, View
from epe.planning.work import remaining_s


def options(trajectory: TrajectoryView, settings: ElasticSettings, num_ranks: int) -> tuple[int, ...]:
    """The widths that a request's next lease may have, narrow ones first."""
    if trajectory.stage is not Stage.DENOISE:
        return (1,)
    cut_off = settings.switch_allowed_until_step
    if cut_off is not None and trajectory.step >= cut_off and trajectory.step > 0:
        return (len(trajectory.lane),)
    return trajectory.workload.widths(settings.widths, limit=num_ranks)


def share(
    view: View, order: Sequence[TrajectoryView], num_ranks: int, *, settings: ElasticSettings
) -> Layout:
    """The layout of `order` on `num_ranks` ranks that ends the queue best."""
    if not order or num_ranks <= 0:
        return ()
    search = _Search(view, order, num_ranks, settings)
    return min(search.candidates(), key=search.score)


class _Search:
    def __init__(
        self, view: View, order: Sequence[TrajectoryView], num_ranks: int, settings: ElasticSettings
    ) -> None:
        self.view = view
        self.order = order
        self.num_ranks = num_ranks
        self.settings = settings
        self._remaining: dict[tuple[str, int], float] = {}

    def candidates(self) -> Iterator[Layout]:
        """The first k requests at their narrowest width, then widened while ranks are left; for every k.
        The first candidate keeps the widths of what runs, and so wins where nothing better is found."""
        kept = [(t, len(t.lane)) for t in self.order if t.lane and t.stage is Stage.DENOISE]
        running = {t.request_id for t, _ in kept}
        new = [(t, self._options(t)[0]) for t in self.order if t.request_id not in running]
        yield fitting(kept + new, self.num_ranks)
        yield self._filled(fitting(kept + new, self.num_ranks))
        for count in range(1, min(len(self.order), self.num_ranks, self.settings.max_layouts) + 1):
            first = [(t, self._options(t)[0]) for t in self.order[:count]]
            yield self._filled(fitting(first, self.num_ranks))

    def score(self, layout: Layout) -> tuple[float, int]:
        """Summed latency with what moving costs, then idle ranks."""
        widths = {t.request_id: width for t, width in layout}
        first = [t for t in self.order if t.request_id in widths]
        rest = [t for t in self.order if t.request_id not in widths]
        jobs = [(widths[t.request_id], self._later_s(t, widths[t.request_id])) for t in first]
        fair = max(1, self.num_ranks // max(1, len(rest)))
        for trajectory in rest:
            width = min(fastest_width(self.view.costs, trajectory, self.settings.widths), fair)
            jobs.append((width, self._remaining_s(trajectory, width)))
        flow = sum(play([0.0] * self.num_ranks, jobs))
        moving = sum(self._moving_s(t, width) for t, width in layout)
        return (flow + moving, self.num_ranks - sum(widths.values()))

    def _filled(self, layout: Layout) -> Layout:
        """Give the ranks that are left to whoever gains most seconds by each."""
        widths = {t.request_id: width for t, width in layout}
        spare = self.num_ranks - sum(widths.values())
        while spare > 0:
            gain, trajectory, wider = max(
                (
                    (self._gain(t, widths[t.request_id], wider), t, wider)
                    for t, _ in layout
                    for wider in self._options(t)
                    if widths[t.request_id] < wider <= widths[t.request_id] + spare
                ),
                key=lambda step: step[0],
                default=(0.0, None, 0),
            )
            if trajectory is None or gain <= 0:
                break
            spare -= wider - widths[trajectory.request_id]
            widths[trajectory.request_id] = wider
        return tuple((t, widths[t.request_id]) for t, _ in layout)

    def _gain(self, trajectory: TrajectoryView, width: int, wider: int) -> float:
        """Seconds saved for each rank that is added."""
        saved = self._remaining_s(trajectory, width) - self._remaining_s(trajectory, wider)
        if trajectory.lane and wider != len(trajectory.lane):
            saved -= self.settings.min_resize_gain_s + self.settings.resize_hysteresis_s
        return saved / (wider - width)

    def _later_s(self, trajectory: TrajectoryView, width: int) -> float:
        """An encode runs on one rank, but the steps after it need not."""
        if trajectory.stage is Stage.ENCODE:
            width = fastest_width(self.view.costs, trajectory, self.settings.widths)
        return self._remaining_s(trajectory, width)

    def _moving_s(self, trajectory: TrajectoryView, width: int) -> float:
        if not trajectory.lane or width == len(trajectory.lane) or trajectory.stage is not Stage.DENOISE:
            return 0.0
        control = self.settings.resize_control_cost_s + self.settings.resize_hysteresis_s
        return control + self.view.costs.migration_s(trajectory.workload.state_bytes)

    def _remaining_s(self, trajectory: TrajectoryView, width: int) -> float:
        key = (trajectory.request_id, width)
        if key not in self._remaining:
            self._remaining[key] = remaining_s(self.view.costs, trajectory, width)
        return self._remaining[key]

    def _options(self, trajectory: TrajectoryView) -> tuple[int, ...]:
        return options(trajectory, self.settings, self.num_ranks)


def fitting(wanted: Sequence[tuple[TrajectoryView, int]], num_ranks: int) -> Layout:
    """Those of a list of widths that fit into the pool, in order."""
    layout: list[tuple[TrajectoryView, int]] = []
    for trajectory, width in wanted:
        if width <= num_ranks:
            layout.append((trajectory, width))
            num_ranks -= width
    return tuple(layout)
