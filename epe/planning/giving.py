"""Giving the ranks of the whole pool away, one request after the other, and widening those that have some."""

from __future__ import annotations

from collections.abc import Sequence

from epe.messages import Stage
from epe.planning.pace import Pace, Paces
from epe.planning.settings import ElasticSettings
from epe.planning.view import TrajectoryView, View

# Requests with the widths that they shall run at, most important first.
Layout = tuple[tuple[TrajectoryView, int], ...]

# Work that will be late anyway runs as wide as this share of ideal speed-up allows.
BRISK_EFFICIENCY = 0.7


class Giving:
    """Mutable, lives for one plan."""

    def __init__(self, view: View, paces: Paces, settings: ElasticSettings) -> None:
        self.view = view
        self.paces = paces
        self.settings = settings
        self.spare = len(view.ranks)
        self.widths: dict[str, int] = {}
        self._given: list[TrajectoryView] = []

    @property
    def layout(self) -> Layout:
        return tuple((t, self.widths[t.request_id]) for t in self._given)

    def width(self, trajectory: TrajectoryView) -> int:
        """How many ranks it has been given."""
        return self.widths.get(trajectory.request_id, 0)

    def give(self, trajectory: TrajectoryView, width: int) -> None:
        """Give `width` ranks, or the widest lane that is left; nothing if there is none."""
        if self.spare <= 0 or trajectory.request_id in self.widths:
            return
        limit = min(width, self.spare)
        possible = [w for w in self.settings.options(trajectory, self.paces.of(trajectory)) if w <= limit]
        if possible:
            self.widths[trajectory.request_id] = possible[-1]
            self._given.append(trajectory)
            self.spare -= possible[-1]

    def brisk_width(self, trajectory: TrajectoryView) -> int:
        """For work that must not stand in the way: wide, so that its leases are short, but not wasteful."""
        pace = self.paces.of(trajectory)
        if trajectory.stage is Stage.DENOISE:
            return pace.brisk_width(BRISK_EFFICIENCY)
        return pace.ladder(trajectory.stage)[0][0]

    def widen(self, wanted: Sequence[TrajectoryView], *, floor: float) -> None:
        """Give what is left to those that run, whoever gains most by each rank first, while a wider lane keeps
        `floor` of its efficiency (seconds at one rank, over ranks times seconds)."""
        running = [t for t in wanted if t.request_id in self.widths and t.stage is not Stage.ENCODE]
        while self.spare > 0:
            steps = (self._best_step(t, floor) for t in running)
            gain, name, wider = max(steps, default=(0.0, "", 0))
            if gain <= 0:
                return
            self.spare -= wider - self.widths[name]
            self.widths[name] = wider

    def _best_step(self, trajectory: TrajectoryView, floor: float) -> tuple[float, str, int]:
        """The share of what is left that each added rank saves (so that who is nearly done goes first), whose, and
        up to which width."""
        name, pace = trajectory.request_id, self.paces.of(trajectory)
        width = self.widths[name]
        best = (0.0, name, width)
        for wider in self.settings.options(trajectory, pace):
            if width < wider <= width + self.spare and pace.efficiency_of(trajectory.stage, wider) >= floor:
                share = self._saved_s(trajectory, pace, width, wider) / pace.remaining_s(trajectory, width)
                best = max(best, (share / (wider - width), name, wider))
        return best

    def _saved_s(self, trajectory: TrajectoryView, pace: Pace, width: int, wider: int) -> float:
        saved_s = pace.remaining_s(trajectory, width) - pace.remaining_s(trajectory, wider)
        if trajectory.lane and wider > len(trajectory.lane):
            saved_s -= self.settings.resize_s + self.view.costs.migration_s(trajectory.workload.state_bytes)
        return saved_s
