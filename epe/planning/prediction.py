"""When a request will end: what stands before it is played forward on the cost table, a long queue as one sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from epe.messages import Stage
from epe.planning.costs import CostTable, Workload
from epe.planning.view import TrajectoryView, View
from epe.planning.work import left_s


class Kind(NamedTuple):
    """All that counts of a request that waits: of thousands most are alike. `num_steps` are those that are left
    and computed."""

    workload: Workload
    stage: Stage
    num_steps: int


def kind_of(trajectory: TrajectoryView) -> Kind:
    return Kind(trajectory.workload, trajectory.stage, trajectory.num_computed_left)


class Ahead(Struct, frozen=True, kw_only=True):
    """What stands before a request: `first` in their order, and behind those so many `others` of each kind."""

    first: Sequence[Kind] = ()
    others: Mapping[Kind, int] = {}

    @property
    def num_requests(self) -> int:
        return len(self.first) + sum(self.others.values())


def predicted_finish_s(
    view: View, trajectory: TrajectoryView, *, ahead: Ahead, widths: tuple[int, ...]
) -> float:
    """When the picture of a request will be decoded if all that is ahead runs before it, each at one fair width and on
    the ranks that are free first.

    The `others` are not played but shared out evenly over the ranks, so that their number costs nothing. On lanes of
    one rank the finish is then at most as much too late as the longest of them takes, and never too early.
    """
    share = len(view.ranks) // (1 + ahead.num_requests)
    jobs = _Jobs(view.costs, tuple(width for width in widths if width <= share) or (min(widths),))
    ranks = _Ranks(max(rank.free_s, view.now_s) for rank in view.ranks)
    for kind in ahead.first:
        ranks.run(*jobs.of(kind))
    ranks.share_out(sum(count * jobs.rank_seconds(kind) for kind, count in ahead.others.items()))
    return ranks.run(*jobs.of(kind_of(trajectory)))


class _Jobs:
    """Width and seconds of each kind: those of the fair widths at which it ends soonest."""

    def __init__(self, costs: CostTable, widths: tuple[int, ...]) -> None:
        self._costs = costs
        self._widths = widths
        self._known: dict[Kind, tuple[int, float]] = {}

    def of(self, kind: Kind) -> tuple[int, float]:
        if kind not in self._known:
            seconds, width = min((left_s(self._costs, *kind, width=width), width) for width in self._widths)
            self._known[kind] = (width, seconds)
        return self._known[kind]

    def rank_seconds(self, kind: Kind) -> float:
        width, seconds = self.of(kind)
        return width * seconds


class _Ranks:
    """When each will be free, the first one first."""

    def __init__(self, free_s: Iterable[float]) -> None:
        self._free_s = sorted(free_s)

    def run(self, width: int, seconds: float) -> float:
        """Put a job on those that are free first; when it ends."""
        free_s, width = self._free_s, min(width, len(self._free_s))
        end_s = free_s[width - 1] + seconds
        free_s[:width] = [end_s] * width
        free_s.sort()
        return end_s

    def share_out(self, rank_seconds: float) -> None:
        """Have all of them busy until one moment with so much work."""
        free_s = self._free_s
        for num_ranks in range(len(free_s), 0, -1):
            level_s = (sum(free_s[:num_ranks]) + rank_seconds) / num_ranks
            if level_s >= free_s[num_ranks - 1]:
                free_s[:num_ranks] = [level_s] * num_ranks
                return
