"""What a policy sees and what it answers. Times are seconds on the planner's clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from epe.messages import Reuse, Stage
from epe.planning.costs import CostTable, Workload


class RankView(Struct, frozen=True, kw_only=True):
    """A rank: when its leases will end, and how many it has (one running, one waiting at most)."""

    rank: int
    free_s: float
    num_leases: int


class TrajectoryView(Struct, frozen=True, kw_only=True):
    """A request that still needs leases, as it will be when the leases that it has have ended.

    `stage` and `step` are what comes next; `lane` is its last lane (empty before the first one), `holders`
    the ranks that will hold its state, `ready_s` when the leases that it has will have ended (in the past if
    it has none), `served_s` when its last lease ended. Requests of one `shape` and workload can be a batch, unless
    one has to be drawn `alone`. With `reuse` only some steps cost what a step costs (None: all).
    """

    request_id: str
    workload: Workload
    stage: Stage
    step: int
    num_steps: int
    arrival_s: float
    served_s: float
    ready_s: float
    deadline_s: float | None
    priority: int
    client_id: str = ""
    lane: tuple[int, ...]
    holders: tuple[int, ...]
    num_leases: int
    shape: tuple[int, ...] = ()
    alone: bool = False
    reuse: Reuse | None = None

    @property
    def num_computed_left(self) -> int:
        """Of the steps that are left those that cost what a step costs."""
        return self.num_computed(self.num_steps - self.step)

    @property
    def num_computed_whole(self) -> int:
        """Of all its steps those that cost what a step costs."""
        return self.num_steps if self.reuse is None else self.reuse.num_computed(0, self.num_steps)

    def num_computed(self, num_steps: int) -> int:
        """Of the next steps those that cost what a step costs."""
        if self.reuse is None:
            return num_steps
        return self.reuse.num_computed(self.step, self.step + num_steps)

    def steps_with(self, num_computed: int) -> int:
        """The most steps of which so many (1 or more) are computed, of those that are left."""
        if self.reuse is None:
            return min(num_computed, self.num_steps - self.step)
        return self.reuse.end_of(self.step, num_computed, num_steps=self.num_steps) - self.step

    def has_come(self, now_s: float) -> bool:
        """False only where the simulator shows what is still to come."""
        return self.arrival_s <= now_s + 1e-6

    def ready_with(self, until_s: Mapping[int, float]) -> float:
        """When its leases will have ended: as was expected when the last one was sent, or earlier if the ranks of its
        lane are now expected to be free before, by `until_s`."""
        if not self.num_leases or not self.lane:
            return self.ready_s
        ends_s = [until_s[rank] for rank in self.lane if rank in until_s]
        return min(self.ready_s, max(ends_s, default=self.ready_s))

    def unserved_s(self, now_s: float) -> float:
        """Seconds since it was last served; 0 while it has a lease."""
        return 0.0 if self.num_leases else now_s - self.served_s


class View(Struct, frozen=True, kw_only=True):
    """Everything that a plan depends on. It holds until the next event: the books may go on in `trajectories`.

    As many ranks decode together as the widest of `decode_widths` within a lane that is given for it.

    A plan is asked for at every event, when a rank comes within `look_ahead_s` of the end of its lease, and again
    after a plan that gave leases and left ranks open: early enough that none idles for want of the next lease, late
    enough that little is decided in advance.
    """

    now_s: float
    ranks: tuple[RankView, ...]
    trajectories: Sequence[TrajectoryView]
    costs: CostTable
    decode_widths: tuple[int, ...] = (1,)
    look_ahead_s: float = 0.05

    def decode_width(self, widest: int) -> int:
        """The widest lane of up to `widest` ranks that may decode."""
        return widest_within(self.decode_widths, widest)

    @property
    def open_ranks(self) -> frozenset[int]:
        """Ranks that may be given another lease: idle ones, and those whose only lease is about to end."""
        return frozenset(rank.rank for rank in self.ranks if self._opens_s(rank) <= self.now_s)

    @property
    def next_opening_s(self) -> float | None:
        """When the next rank will open, if nothing happens before; None if none will by itself."""
        opening = [opens for rank in self.ranks if self.now_s < (opens := self._opens_s(rank)) < math.inf]
        return min(opening, default=None)

    def _opens_s(self, rank: RankView) -> float:
        if rank.num_leases == 0:
            return self.now_s
        return rank.free_s - self.look_ahead_s if rank.num_leases < MAX_LEASES else math.inf


def widest_within(widths: Sequence[int], widest: int) -> int:
    """The largest of `widths` that is at most `widest`, else 1."""
    return max((width for width in widths if width <= widest), default=1)


class Assignment(Struct, frozen=True, kw_only=True):
    """One lease to be: the next stage of a request (for denoising, `num_steps` of it) on `ranks`; `partners` are
    requests that take these steps with it, as one batch."""

    request_id: str
    ranks: tuple[int, ...]
    num_steps: int = 0
    partners: tuple[str, ...] = ()


class Policy(Protocol):
    """Decides the next leases. Pure: the same view gives the same plan."""

    def plan(self, view: View) -> tuple[Assignment, ...]:
        """Assignments on open ranks, no rank twice; a request that gets none is parked where it is."""


# One lease runs while the next one waits, so that a lane that goes on never idles while the planner thinks.
MAX_LEASES = 2
