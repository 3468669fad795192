"""Who is looked at: of each kind of request the most urgent few. Their order is kept from plan to plan and mended where
a request has changed, so that a long queue does not make a plan slow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from epe.planning.backlog import Backlog
from epe.planning.order import Order
from epe.planning.pace import Paces
from epe.planning.patience import Patience
from epe.planning.settings import ElasticSettings
from epe.planning.starving import endures_s
from epe.planning.view import TrajectoryView, View


class Queue:
    """Mutable, owned by one policy. Requests that can still be in time stand by deadline, those that cannot and those
    without a deadline by what is left of them, and all that have no lease by when they starve.

    What is left is as it was when a request last changed or the queue was sorted: the cost table may have been
    corrected since. Whoever uses a place asks the table again.
    """

    # With a cost table that changes at every event, the whole queue is sorted anew this often.
    SORTED_FOR_S = 10.0

    def __init__(self, settings: ElasticSettings) -> None:
        self.settings = settings
        self._view: View | None = None
        self._paces: Paces | None = None
        self._sorted_s = 0.0
        self._patience = Patience()
        self._clear()

    def _clear(self) -> None:
        self._edition = 0
        self._in_time, self._late, self._undated, self._unserved = Order(), Order(), Order(), Order()
        self._latest: list[tuple[float, str]] = []
        self._moments: dict[str, float] = {}
        self._by_id: dict[str, TrajectoryView] = {}

    # --- who is looked at ---

    @property
    def hopeful(self) -> list[TrajectoryView]:
        """Requests that can be in time, on an idle world at least: larger priority, then earlier deadline first."""
        return self._first(self._in_time)

    @property
    def late(self) -> list[TrajectoryView]:
        """Requests that cannot be in time, those that end soonest first."""
        return self._first(self._late)

    @property
    def undated(self) -> list[TrajectoryView]:
        """Requests without a deadline: larger priority first, then those that end soonest."""
        return self._first(self._undated)

    @property
    def starving(self) -> list[TrajectoryView]:
        """Requests that were not served for too long, those first that starve longest."""
        return [self._by_id[name] for name in self._unserved.first(min(self._num_starving, self._limit))]

    def due(self, in_time: Iterable[TrajectoryView]) -> list[TrajectoryView]:
        """The one that has starved longest, if it is its turn: the more there are, the longer each waits, so that
        a backlog takes a bounded share of the world and does not turn everything into a queue by age."""
        assert self._view is not None
        names = {t.request_id for t in in_time}
        first = [t for t in self.starving if t.request_id not in names][:1]
        more = 1 + self._num_starving / 4
        return [t for t in first if t.unserved_s(self._view.now_s) > more * self._endures_s(t)]

    def left(self, trajectory: TrajectoryView) -> tuple[float, float, str]:
        """What is left of a request on one rank: those that end soonest first."""
        assert self._paces is not None
        pace = self._paces.of(trajectory)
        return (pace.remaining_s(trajectory, pace.widths[0]), trajectory.arrival_s, trajectory.request_id)

    @property
    def patience_s(self) -> float:
        """How long most of those that came of late could have waited and still be in time."""
        return self._patience.seconds

    @property
    def _limit(self) -> int:
        return self.settings.max_looked_at

    @property
    def _num_starving(self) -> int:
        assert self._view is not None
        return self._unserved.num_below((self._view.now_s,))

    def _endures_s(self, trajectory: TrajectoryView) -> float:
        """How long it may go unserved."""
        assert self._paces is not None
        alone_s = self._paces.of(trajectory).whole_s(trajectory)
        return endures_s(self.settings.starvation_s, alone_s=alone_s)

    def _first(self, order: Order) -> list[TrajectoryView]:
        return [self._by_id[name] for name in order.first(self._limit)]

    # --- how it is kept ---

    def show(self, view: View, paces: Paces) -> None:
        """Take in what has changed since the last view."""
        changes = self._changes(view.trajectories, paces, view.now_s)
        self._view, self._paces = view, paces
        if changes is None:
            self._clear()
            self._sorted_s = view.now_s
            for trajectory in view.trajectories:
                self._put(trajectory)
        else:
            self._mend(changes, view.trajectories)
        if isinstance(view.trajectories, Backlog):
            self._edition = view.trajectories.edition
        self._let_pass(view.now_s)

    def _changes(self, shown: Sequence[TrajectoryView], paces: Paces, now_s: float) -> Iterable[str] | None:
        """Whose places are no longer right; None if all are to be sorted."""
        same = self._view is not None and shown is self._view.trajectories and isinstance(shown, Backlog)
        outdated = paces is not self._paces and now_s > self._sorted_s + self.SORTED_FOR_S
        if not same or outdated or now_s < self._sorted_s:
            return None
        assert isinstance(shown, Backlog)
        changes = shown.since(self._edition)
        return None if changes is None else dict.fromkeys(changes)

    def _mend(self, changes: Iterable[str], shown: Sequence[TrajectoryView]) -> None:
        assert isinstance(shown, Backlog)
        for name in changes:
            for order in (self._in_time, self._late, self._undated, self._unserved):
                order.drop(name)
            self._by_id.pop(name, None)
            self._moments.pop(name, None)
            if (trajectory := shown.by_id.get(name)) is not None:
                self._put(trajectory)

    def _put(self, trajectory: TrajectoryView) -> None:
        assert self._view is not None
        assert self._paces is not None
        name = trajectory.request_id
        self._by_id[name] = trajectory
        if not trajectory.num_leases:
            self._unserved.put(name, (trajectory.served_s + self._endures_s(trajectory),))
        if trajectory.deadline_s is None:
            self._undated.put(name, (-trajectory.priority, *self.left(trajectory)))
        else:
            self._in_time.put(name, (-trajectory.priority, trajectory.deadline_s))
            self._wait_for(name, self._latest_s(trajectory))
            if trajectory.has_come(self._view.now_s):
                self._patience.note(trajectory, best_s=self._paces.of(trajectory).best_s(trajectory))

    def _latest_s(self, trajectory: TrajectoryView) -> float:
        """When it must begin at the latest; at once, if its leases will end too late."""
        assert self._paces is not None
        assert trajectory.deadline_s is not None
        latest_s = trajectory.deadline_s - self._paces.of(trajectory).best_s(trajectory)
        return latest_s if trajectory.ready_s <= latest_s else float("-inf")

    def _wait_for(self, name: str, latest_s: float) -> None:
        self._moments[name] = latest_s
        heappush(self._latest, (latest_s, name))

    def _let_pass(self, now_s: float) -> None:
        """Who should have begun by now is late, unless the cost table was corrected. Moments of requests that have
        changed since are passed over."""
        while self._latest and self._latest[0][0] < now_s:
            moment, name = heappop(self._latest)
            if self._moments.get(name) != moment:
                continue
            trajectory = self._by_id[name]
            if (latest_s := self._latest_s(trajectory)) >= now_s:
                self._wait_for(name, latest_s)
                continue
            del self._moments[name]
            self._in_time.drop(name)
            self._late.put(name, self.left(trajectory))
