"""What the policies of one aim (throughput, latency, slo, fair) share: they choose widths over the whole world, as if
every rank were free, and here it is decided what of that starts now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from epe.messages import Stage
from epe.planning.draft import Draft
from epe.planning.speeds import Speeds
from epe.planning.starving import endures_s
from epe.planning.view import TrajectoryView, View

# Requests with the ranks that their next task shall have, most important first.
Targets = list[tuple[TrajectoryView, int]]


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """What the stage file says about these policies; times in seconds. So many requests are looked at, whatever
    the length of the queue."""

    widths: tuple[int, ...]
    pulse_s: float = 0.05
    pulse_steps: int = 1
    starvation_s: float = 30.0
    deadline_guard_s: float = 0.0
    max_looked_at: int = 32

    def draft(self, view: View) -> Draft:
        """An empty plan on the open ranks of a view."""
        speeds = Speeds(view.costs, widths=self.widths, world=len(view.ranks))
        return Draft(view, speeds, pulse_s=self.pulse_s, pulse_steps=self.pulse_steps)

    def first(
        self, draft: Draft, key: Callable[[TrajectoryView], tuple[float | str, ...]]
    ) -> list[TrajectoryView]:
        """The first requests by: starved ones, larger priority, then `key`."""
        view, speeds = draft.view, draft.speeds

        def place(trajectory: TrajectoryView) -> tuple[bool, int, tuple[float | str, ...]]:
            alone_s = speeds.of(trajectory).whole_s(trajectory)
            starved = trajectory.unserved_s(view.now_s) > endures_s(self.starvation_s, alone_s=alone_s)
            return not starved, -trajectory.priority, (*key(trajectory), trajectory.request_id)

        return nsmallest(self.max_looked_at, view.trajectories, key=place)


def targets_for(
    order: Iterable[TrajectoryView], num_ranks: int, width: Callable[[TrajectoryView, int], int]
) -> tuple[Targets, int]:
    """Give `width(trajectory, spare)` ranks (one to encode or decode; none for 0) to each in turn while ranks are
    left; returns the targets and the ranks left."""
    targets: Targets = []
    for trajectory in order:
        if num_ranks <= 0:
            break
        wanted = width(trajectory, num_ranks) if trajectory.stage is Stage.DENOISE else 1
        if 0 < wanted <= num_ranks:
            targets.append((trajectory, wanted))
            num_ranks -= wanted
    return targets, num_ranks


def widened(
    targets: Targets, spare: int, gain: Callable[[TrajectoryView, int, int], float], *, speeds: Speeds
) -> Targets:
    """Give the ranks that are left to whoever gains most for each; `gain(trajectory, width, wider)`, 0 for none."""
    widths = [width for _, width in targets]
    while spare > 0:
        steps = [
            (gain(trajectory, widths[place], wider) / (wider - widths[place]), -place, wider)
            for place, (trajectory, _) in enumerate(targets)
            if trajectory.stage is Stage.DENOISE
            for wider in speeds.of(trajectory).within(widths[place] + spare)
            if wider > widths[place]
        ]
        best, place, wider = max(steps, default=(0.0, 0, 0))
        if best <= 0:
            break
        spare -= wider - widths[-place]
        widths[-place] = wider
    return [(trajectory, width) for (trajectory, _), width in zip(targets, widths, strict=True)]


class Assembly:
    """Starts what the targets allow now. A request whose ranks are not all open keeps the open ones for as long as
    waiting is better than running on those; ranks that are kept run what ends before they are needed."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.needed_s: dict[int, float] = {}

    def run(self, targets: Sequence[tuple[TrajectoryView, int]], others: Iterable[TrajectoryView]) -> None:
        draft = self.draft
        fixed = [(t, width) for t, width in targets if not draft.may_start(t)]
        able = [(t, width) for t, width in targets if draft.may_start(t)]
        for trajectory, width in able:
            if len(trajectory.lane) == width and draft.free.issuperset(trajectory.lane):
                draft.start(trajectory, trajectory.lane)
        for trajectory, width in able:
            if draft.may_start(trajectory):
                self._start_or_keep(trajectory, width)
        for trajectory, width in fixed:
            if trajectory.stage is Stage.DENOISE:
                missing = width - len(trajectory.lane)
                self._keep(draft.nearest(trajectory, max(0, missing), self._open), trajectory.ready_s)
        self._fill((*(t for t, _ in able), *others))

    @property
    def _open(self) -> set[int]:
        return self.draft.free - self.needed_s.keys()

    def _keep(self, ranks: Iterable[int], until_s: float) -> None:
        self.needed_s |= dict.fromkeys(ranks, until_s)

    def _start_or_keep(self, trajectory: TrajectoryView, width: int) -> None:
        ranks = self.draft.nearest(trajectory, width, self._open)
        if len(ranks) == width:
            self.draft.start(trajectory, ranks)
            return
        fitting = self.draft.speeds.of(trajectory).within(len(ranks))
        at_s = self._complete_s(width - len(ranks))
        if fitting and not self._waiting_pays(trajectory, fitting[-1], width, at_s - self.draft.view.now_s):
            self.draft.start(trajectory, self.draft.nearest(trajectory, fitting[-1], ranks))
        else:
            self._keep(ranks, at_s)

    def _complete_s(self, num_missing: int) -> float:
        """When so many of the busy ranks will be free."""
        busy = sorted(until_s for rank, until_s in self.draft.until_s.items() if rank not in self.draft.free)
        return busy[min(num_missing, len(busy)) - 1] if busy else self.draft.view.now_s

    def _waiting_pays(self, trajectory: TrajectoryView, narrow: int, wide: int, wait_s: float) -> bool:
        """Whether the steps of a lease on few ranks end earlier if they wait and run on many."""
        steps = trajectory.num_computed(self.draft.num_steps(trajectory, narrow))
        speed = self.draft.speeds.of(trajectory)
        return wait_s < steps * (speed.step_s(narrow) - speed.step_s(wide))

    def _fill(self, waiting: Iterable[TrajectoryView]) -> None:
        """Ranks that are kept, or that no target wanted, run one-rank tasks that end before they are needed."""
        ranks = sorted(self.draft.free, key=lambda rank: -self.needed_s.get(rank, float("inf")))
        for trajectory in waiting:
            if not ranks:
                return
            narrow = self.draft.speeds.of(trajectory).ladder[0]
            if trajectory.stage is Stage.DENOISE and narrow > 1:
                continue
            end_s = self.draft.view.now_s + self.draft.lease_s(trajectory, 1)
            if self.draft.may_start(trajectory) and end_s <= self.needed_s.get(ranks[0], float("inf")):
                self.draft.start(trajectory, (ranks.pop(0),))
