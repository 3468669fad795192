"""The policy `fair`: every client gets the same share of the ranks' time, whatever it asks for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from heapq import nsmallest

from epe.messages import Stage
from epe.planning.draft import Draft
from epe.planning.pool import Assembly, PoolSettings, targets_for, widened
from epe.planning.starving import endures_s
from epe.planning.throughput import saved_s
from epe.planning.view import Assignment, TrajectoryView, View

# Clients whose service differs by less than so many rank-seconds count as equal, so that lanes are not swapped
# for every step.
QUANTUM_S = 1.0


# A client's name, or a request's id where it has none.
Client = tuple[str, str]


class Fair:
    """Least attained service first. A client's service is the rank-seconds that its requests were given, at the
    width that spends the fewest, so that nobody pays for ranks that would have idled; each step of priority
    doubles a client's share. Among the requests of one client the earliest goes first. A request without a
    `client_id` counts for itself.

    State between calls: the service of each client, and how far each request was when it was last looked at. Both
    follow from the views in their order, so the same view twice gives the same plan. As in start-time fair queueing
    (Goyal, Vin, Cheng, SIGCOMM'96) a client that comes back starts where it stopped, or level with the one that has
    had least, whichever is more: idling saves nothing up, and coming in small pieces gains nothing.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._service_s: dict[Client, float] = {}
        self._given_s: dict[str, float] = {}
        self._level_s = 0.0

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        self._charge(draft)
        if not draft.free:
            return ()
        order = self._order(draft)
        limits = _limits(order, len(view.ranks))
        targets, spare = targets_for(
            order, len(view.ranks), lambda t, spare: _width(draft, t, min(limits[client_of(t)], spare))
        )
        targets = widened(targets, spare, lambda t, a, b: saved_s(draft, t, a, b), speeds=draft.speeds)
        Assembly(draft).run(targets, order)
        return draft.plan

    def _charge(self, draft: Draft) -> None:
        """Enter who is new, add what has been given since the last call, forget who is gone with least."""
        before, present = self._service_s, {client_of(t) for t in draft.view.trajectories}
        self._level_s = min((before[client] for client in present if client in before), default=self._level_s)
        service_s = {client: before.get(client, self._level_s) for client in present}
        for client, had_s in before.items():
            if client not in present and is_named(client) and had_s > self._level_s:
                service_s[client] = had_s
        begun = [t for t in draft.view.trajectories if t.stage is not Stage.ENCODE]
        given_s = {t.request_id: _given_s(draft, t) for t in begun}
        for trajectory in begun:
            more_s = given_s[trajectory.request_id] - self._given_s.get(trajectory.request_id, 0.0)
            service_s[client_of(trajectory)] += more_s / 2.0 ** max(-8, min(8, trajectory.priority))
        self._service_s, self._given_s = service_s, given_s

    def _order(self, draft: Draft) -> list[TrajectoryView]:
        """Starved requests, then round by round one request of each client, least served clients first."""
        view, speeds = draft.view, draft.speeds
        places = _places(view, self.settings.max_looked_at)

        def key(trajectory: TrajectoryView) -> tuple[bool, int, int, float, str]:
            endured_s = endures_s(
                self.settings.starvation_s, alone_s=speeds.of(trajectory).whole_s(trajectory)
            )
            starved = trajectory.unserved_s(view.now_s) > endured_s
            served = int(self._service_s[client_of(trajectory)] / QUANTUM_S)
            place = places.get(trajectory.request_id, 0)
            return not starved, place, served, trajectory.arrival_s, trajectory.request_id

        return nsmallest(self.settings.max_looked_at, view.trajectories, key=key)


def _limits(order: Sequence[TrajectoryView], num_ranks: int) -> dict[Client, int]:
    """How wide the lanes of each client may be: its share of the world, divided by its requests."""
    num_requests = Counter(client_of(t) for t in order)
    return {client: max(1, num_ranks // len(num_requests) // count) for client, count in num_requests.items()}


def _places(view: View, limit: int) -> dict[str, int]:
    """Where a request stands among those of its client: larger priority first, then first come; 0 if it is alone.
    Beyond `limit` all stand equally far behind."""
    queues: defaultdict[str, list[TrajectoryView]] = defaultdict(list)
    for trajectory in view.trajectories:
        if trajectory.client_id:
            queues[trajectory.client_id].append(trajectory)
    places = {t.request_id: limit for queue in queues.values() for t in queue}
    for queue in queues.values():
        first = nsmallest(limit, queue, key=lambda t: (-t.priority, t.arrival_s, t.request_id))
        places |= {t.request_id: place for place, t in enumerate(first)}
    return places


def client_of(trajectory: TrajectoryView) -> Client:
    """Whose service a request counts for: its client's, or its own."""
    return (trajectory.client_id, "") if trajectory.client_id else ("", trajectory.request_id)


def is_named(client: Client) -> bool:
    return bool(client[0])


def _given_s(draft: Draft, trajectory: TrajectoryView) -> float:
    """Rank-seconds of the tasks that it has been given."""
    speed = draft.speeds.of(trajectory)
    steps_s = trajectory.step * speed.thrifty * speed.step_s(speed.thrifty)
    match trajectory.stage:
        case Stage.ENCODE:
            return 0.0
        case Stage.DENOISE:
            return speed.encode_s + steps_s
        case _:
            return speed.encode_s + steps_s + speed.decode_s


def _width(draft: Draft, trajectory: TrajectoryView, limit: int) -> int:
    speed = draft.speeds.of(trajectory)
    return max(speed.within(limit), default=0) or speed.ladder[0]
