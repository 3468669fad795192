"""The requests in work, and the backlog of them that a policy sees: mended where one has changed, never made anew."""

from __future__ import annotations

import math
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
        # All that want a lease: those that have begun, then larger priority first; of each turn how many of a kind.
        self._turns = Order()
        self._kinds: defaultdict[float, Counter[Kind]] = defaultdict(Counter)
        self._counted: dict[str, tuple[float, Kind]] = {}
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
        """What stands before the last one of its priority: those that have begun, then those that wait with at least
        that priority; the first `limit` of them one by one."""
        self._settle()
        own_turn, own_kind = self._counted[trajectory.request.id]
        first = [name for name in self._turns.first(limit) if self._counted[name][0] <= own_turn]
        played = [self._counted[name][1] for name in first]
        if first and first[-1] == trajectory.request.id:
            return Ahead(first=played[:-1])
        others = Counter({own_kind: -1})
        for turn, kinds in self._kinds.items():
            if turn <= own_turn:
                others.update(kinds)
        others.subtract(played)
        return Ahead(first=played, others=+others)

    @property
    def oldest(self) -> Trajectory | None:
        """The one that came first of those that have begun, else the first one that waits."""
        self._settle()
        return next((self[name] for name in self._turns.first(1)), None)

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
        """In its turn, and among those of its kind, if it wants a lease."""
        if known := self._counted.pop(name, None):
            turn, kind = known
            self._turns.drop(name)
            self._kinds[turn][kind] -= 1
            if not self._kinds[turn][kind]:
                del self._kinds[turn][kind]
        if trajectory is not None and trajectory.wants_lease:
            turn = -math.inf if trajectory.lane else -trajectory.request.priority
            kind = kind_of(trajectory.view)
            self._counted[name] = (turn, kind)
            self._turns.put(name, (turn, self._places[name]))
            self._kinds[turn][kind] += 1

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
