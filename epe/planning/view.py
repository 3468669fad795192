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

    A plan is asked for at every event, and when a rank comes within `look_ahead_s` of the end of its lease:
    early enough that it never idles for want of the next one, late enough that little is decided in advance.
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


def fault_of(view: View, plan: tuple[Assignment, ...]) -> str | None:
    """What is wrong with a plan, in one sentence, or None."""
    return fault_among({t.request_id: t for t in view.trajectories}, plan, open_ranks=view.open_ranks)


def fault_among(
    trajectories: Mapping[str, TrajectoryView],
    plan: tuple[Assignment, ...],
    *,
    open_ranks: frozenset[int],
) -> str | None:
    """`fault_of` for whoever keeps the trajectories by their ids already."""
    if not isinstance(plan, tuple):
        return f"a plan is a tuple of assignments, not {plan!r}"
    taken: set[int] = set()
    seen: set[str] = set()
    for assignment in plan:
        if fault := _form_fault(assignment):
            return fault
        trajectory = trajectories.get(assignment.request_id)
        if trajectory is None or assignment.request_id in seen:
            return f"request {assignment.request_id!r} is not waiting for a lease, or is planned twice"
        if fault := _lease_fault(assignment, trajectory, open_ranks, taken):
            return f"request {assignment.request_id!r}: {fault}"
        taken.update(assignment.ranks)
        seen.add(assignment.request_id)
        for name in assignment.partners:
            partner = trajectories.get(name)
            if partner is None or name in seen or not _may_join(partner, trajectory, assignment.num_steps):
                return f"request {name!r} cannot be a partner of {assignment.request_id!r}"
            seen.add(name)
    return None


def _may_join(partner: TrajectoryView, leader: TrajectoryView, num_steps: int) -> bool:
    both = (partner, leader)
    return (
        (partner.shape, partner.workload) == (leader.shape, leader.workload)
        and all(t.stage is Stage.DENOISE and not t.alone and t.num_leases < MAX_LEASES for t in both)
        and partner.step + num_steps <= partner.num_steps
    )


def _form_fault(assignment: object) -> str | None:
    """A user's policy may put anything into a plan; what has the wrong type would be met in the middle of a lease."""
    if not isinstance(assignment, Assignment):
        return f"a plan holds assignments, not {assignment!r}"
    name, ranks, num_steps = assignment.request_id, assignment.ranks, assignment.num_steps
    if not isinstance(name, str):
        return f"request_id: {name!r} is not a string"
    if not isinstance(ranks, tuple) or not all(isinstance(rank, int) for rank in ranks):
        return f"request {name!r}: ranks: {ranks!r} is not a tuple of whole numbers"
    if not isinstance(num_steps, int):
        return f"request {name!r}: num_steps: {num_steps!r} is not a whole number"
    if not isinstance(partners := assignment.partners, tuple) or not all(
        isinstance(p, str) for p in partners
    ):
        return f"request {name!r}: partners: {partners!r} is not a tuple of strings"
    return None


def _lease_fault(
    assignment: Assignment, trajectory: TrajectoryView, open_ranks: frozenset[int], taken: set[int]
) -> str | None:
    ranks = set(assignment.ranks)
    remaining = trajectory.num_steps - trajectory.step
    if not ranks or len(ranks) != len(assignment.ranks):
        return f"lane {assignment.ranks} is empty or names a rank twice"
    if not ranks <= open_ranks:
        return f"ranks {sorted(ranks - open_ranks)} do not exist or already have {MAX_LEASES} leases"
    if ranks & taken:
        return f"ranks {sorted(ranks & taken)} are in two lanes"
    if trajectory.stage is Stage.DENOISE and len(ranks) > trajectory.workload.max_width:
        return (
            f"a lane of {len(ranks)} ranks is too wide for its {trajectory.workload.tokens} tokens; "
            f"at most {trajectory.workload.max_width} can share them"
        )
    if trajectory.stage is Stage.DENOISE and len(ranks) in trajectory.workload.barred:
        return f"lanes of {len(ranks)} ranks are barred to its steps: they lack memory, or give other bits"
    if trajectory.num_leases >= MAX_LEASES:
        return f"it already has {MAX_LEASES} leases"
    if trajectory.stage is Stage.DENOISE and not 1 <= assignment.num_steps <= remaining:
        return f"{assignment.num_steps} steps were planned; 1 to {remaining} remain"
    reuse, end = trajectory.reuse, trajectory.step + assignment.num_steps
    if (
        trajectory.stage is Stage.DENOISE
        and reuse is not None
        and not reuse.may_end(end, trajectory.num_steps)
    ):
        return f"its lease would end before step {end}, which uses what only a lease keeps"
    return None
