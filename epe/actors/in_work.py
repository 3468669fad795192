"""The requests in work, and the backlog of them that a policy sees: mended where one has changed, never made anew."""

from __future__ import annotations

from collections import Counter, defaultdict

from epe.actors.trajectory import Trajectory
from epe.planning.backlog import Backlog
from epe.planning.order import Order
from epe.planning.prediction import Ahead, Kind, kind_of


class InWork(dict[str, Trajectory]):
    """By id, in the order in which they came. Owned by the planner.

    The policy sees those that have begun, and of those that wait as many as there is room for, larger priority first.
    One that is being encoded takes room too, since its pixels take memory.
    """

    def __init__(self, *, max_inflight: int) -> None:
        super().__init__()
        self._max_inflight = max_inflight
        self._backlog = Backlog()
        self._begun: set[str] = set()
        self._waiting = Order()
        self._shown: set[str] = set()
        # How many of each kind wait, by priority; and as what each of them was counted.
        self._waiting_of: defaultdict[int, Counter[Kind]] = defaultdict(Counter)
        self._counted: dict[str, tuple[int, Kind]] = {}
        self._num_came = 0
        self._places: dict[str, int] = {}
        self._touched: dict[str, None] = {}

    def __setitem__(self, name: str, trajectory: Trajectory) -> None:
        super().__setitem__(name, trajectory)
        self._num_came += 1
        self._places[name] = self._num_came
        self.touch(trajectory)

    def __delitem__(self, name: str) -> None:
        self.touch(self[name])
        super().__delitem__(name)
        del self._places[name]

    def touch(self, trajectory: Trajectory) -> None:
        """It has changed, or is about to: it is looked at before anybody asks."""
        self._touched[trajectory.request.id] = None

    @property
    def backlog(self) -> Backlog:
        """Those that a policy may give leases to."""
        self._settle()
        return self._backlog

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        self._settle()
        return len(self._waiting)

    def ahead_of(self, trajectory: Trajectory, *, limit: int) -> Ahead:
        """What stands before the last one of its priority: those that have begun, and those that wait with at least
        its priority, of which the first `limit` one by one."""
        self._settle()
        own, priority = trajectory.request.id, trajectory.request.priority
        counted = [
            (name, *self._counted[name]) for name in self._waiting.first(limit) if name in self._counted
        ]
        first = {name: kind for name, theirs, kind in counted if theirs >= priority and name != own}
        others = Counter({kind_of(trajectory.view): -1})
        for theirs, kinds in self._waiting_of.items():
            if theirs >= priority:
                others.update(kinds)
        others.subtract(first.values())
        begun = sorted(self._begun, key=self._places.__getitem__)
        views = (self[name].view for name in (*begun, *first) if self[name].wants_lease)
        return Ahead(first=tuple(views), others=+others)

    @property
    def oldest(self) -> Trajectory:
        """The one that came first of those that have begun, else the first one that waits."""
        self._settle()
        return self[min(self._begun, key=self._places.__getitem__, default="") or self._waiting.first(1)[0]]

    def _settle(self) -> None:
        if self._touched:
            for name in self._touched:
                self._place(name)
            self._touched.clear()
            self._fill_room()

    def _place(self, name: str) -> None:
        trajectory = self.get(name)
        self._begun.discard(name)
        self._waiting.drop(name)
        self._count(name, trajectory)
        if trajectory is not None and trajectory.lane:
            self._begun.add(name)
            self._shown.discard(name)
        elif trajectory is not None:
            self._waiting.put(name, (-trajectory.request.priority, self._places[name]))
        if trajectory is not None and trajectory.wants_lease and (trajectory.lane or name in self._shown):
            self._backlog.put(trajectory.view)
        else:
            self._backlog.drop(name)
            self._shown.discard(name)

    def _count(self, name: str, trajectory: Trajectory | None) -> None:
        """Among those of its kind that wait, if it does."""
        if known := self._counted.pop(name, None):
            priority, kind = known
            self._waiting_of[priority][kind] -= 1
            if not self._waiting_of[priority][kind]:
                del self._waiting_of[priority][kind]
        if trajectory is not None and not trajectory.lane and trajectory.wants_lease:
            priority, kind = self._counted[name] = (trajectory.request.priority, kind_of(trajectory.view))
            self._waiting_of[priority][kind] += 1

    def _fill_room(self) -> None:
        """Show as many of those that wait as there is room for."""
        room = max(0, self._max_inflight - len(self._begun))
        if len(self._shown) == len(self._waiting) <= room:
            return
        wanted = self._waiting.first(room)
        for name in self._shown.difference(wanted):
            self._backlog.drop(name)
        for name in wanted:
            if name not in self._shown and self[name].wants_lease:
                self._backlog.put(self[name].view)
        self._shown = set(wanted)
