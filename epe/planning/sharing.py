"""How requests without a deadline share ranks: a bounded number of layouts, compared by the summed latency
of the queue played forward on the cost table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from epe.messages import Stage
from epe.planning.costs import CostTable
from epe.planning.forecast import play
from epe.planning.giving import Layout
from epe.planning.pace import Paces
from epe.planning.settings import ElasticSettings
from epe.planning.view import TrajectoryView

# The width of each request of the order by its place, most important first.
Widths = dict[int, int]


def share(
    order: Sequence[TrajectoryView],
    num_ranks: int,
    *,
    paces: Paces,
    costs: CostTable,
    settings: ElasticSettings,
) -> Layout:
    """The layout of `order` on `num_ranks` ranks that ends the queue best."""
    if not order or num_ranks <= 0:
        return ()
    sharers = [_Sharer(t, paces, costs, settings) for t in order]
    search = _Search(sharers, num_ranks, settings)
    best = min(search.candidates(), key=search.score)
    return tuple((order[place], width) for place, width in best.items())


class _Sharer:
    """A request of the queue. `left_s` is what is left of it by width, `options` the widths that its next lease may
    have, `lane` the present one (0: none), `move_s` what a change of width costs."""

    def __init__(
        self, trajectory: TrajectoryView, paces: Paces, costs: CostTable, settings: ElasticSettings
    ) -> None:
        pace = paces.of(trajectory)
        steps = trajectory.stage is Stage.DENOISE
        self.options = settings.options(trajectory, pace) if steps else (1,)
        # The one rank of an encode may be fewer than its steps can have.
        widths = pace.widths if trajectory.stage is Stage.ENCODE else (*pace.widths, *self.options)
        self.left_s = {width: pace.remaining_s(trajectory, width) for width in widths}
        self.fastest = min(pace.widths, key=lambda width: (self.left_s[width], width))
        lane = len(trajectory.lane) if steps else 0
        # The one rank of its encode is no lane that its steps could keep, where one rank is not allowed.
        self.lane = lane if lane in self.options else 0
        control_s = settings.resize_control_cost_s + settings.resize_hysteresis_s
        self.move_s = control_s + costs.migration_s(trajectory.workload.state_bytes) if self.lane else 0.0
        # An encode runs on one rank, but the steps after it need not.
        self.later = self.fastest if trajectory.stage is Stage.ENCODE else None
        # Each layout that is tried asks again.
        self._at_most: dict[int, tuple[int, float]] = {}

    def end_s(self, width: int) -> float:
        return self.left_s[self.later or width]

    def at_most_s(self, width: int) -> tuple[int, float]:
        """A width of at most `width`, and what is left at that."""
        if width not in self._at_most:
            narrow = (each for each in self.left_s if each <= min(width, self.fastest))
            fair = max(narrow, default=min(self.left_s))
            self._at_most[width] = (fair, self.left_s[fair])
        return self._at_most[width]


class _Search:
    def __init__(self, sharers: Sequence[_Sharer], num_ranks: int, settings: ElasticSettings) -> None:
        self.sharers = sharers
        self.num_ranks = num_ranks
        self.settings = settings
        # A request that gains nothing by a rank gives it to whoever gains most.
        self.worth_s = settings.min_resize_gain_s + settings.resize_hysteresis_s

    def candidates(self) -> Iterator[Widths]:
        """The first k requests at their narrowest width, then widened while ranks are left; for every k.
        The first candidate keeps the widths of what runs, and so wins where nothing better is found."""
        places = range(len(self.sharers))
        running = {place: sharer.lane for place, sharer in enumerate(self.sharers) if sharer.lane}
        new = {place: self.sharers[place].options[0] for place in places if place not in running}
        kept = self._fitting(running | new)
        yield kept
        yield self._filled(kept)
        for count in range(1, min(len(places), self.num_ranks, self.settings.max_layouts) + 1):
            yield self._filled(
                self._fitting({place: self.sharers[place].options[0] for place in places[:count]})
            )

    def score(self, widths: Widths) -> tuple[float, int]:
        """Summed latency with what moving costs, then idle ranks."""
        jobs = [(widths[place], self.sharers[place].end_s(widths[place])) for place in sorted(widths)]
        rest = [sharer for place, sharer in enumerate(self.sharers) if place not in widths]
        fair = max(1, self.num_ranks // max(1, len(rest)))
        jobs += [sharer.at_most_s(fair) for sharer in rest]
        moved = (self.sharers[place] for place, width in widths.items() if self.sharers[place].lane != width)
        flow_s = sum(play([0.0] * self.num_ranks, jobs)) + sum(sharer.move_s for sharer in moved)
        return (flow_s, self.num_ranks - sum(widths.values()))

    def _fitting(self, wanted: Widths) -> Widths:
        """Those of a list of widths that fit into the pool, in order."""
        widths, spare = {}, self.num_ranks
        for place, width in wanted.items():
            if width <= spare:
                widths[place] = width
                spare -= width
        return widths

    def _filled(self, widths: Widths) -> Widths:
        """Give the ranks that are left to whoever gains most seconds by each."""
        widths = dict(widths)
        spare = self.num_ranks - sum(widths.values())
        while spare > 0:
            steps = (self._best_step(place, width, spare) for place, width in widths.items())
            gain_s, place, wider = max(steps, key=lambda step: step[0], default=(0.0, 0, 0))
            if gain_s <= 0:
                break
            spare -= wider - widths[place]
            widths[place] = wider
        return widths

    def _best_step(self, place: int, width: int, spare: int) -> tuple[float, int, int]:
        """Seconds saved for each rank that is added, and up to which width."""
        sharer, best = self.sharers[place], (0.0, place, width)
        for wider in sharer.options:
            if width < wider <= width + spare:
                saved_s = sharer.left_s[width] - sharer.left_s[wider]
                saved_s -= self.worth_s if sharer.lane and wider != sharer.lane else 0.0
                best = max(best, (saved_s / (wider - width), place, wider), key=lambda step: step[0])
        return best
