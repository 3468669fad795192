"""The policy `fair`: every client gets the same share of the ranks' time, whatever it asks for."""

from __future__ import annotations

from collections import defaultdict

from epe.messages import Stage
from epe.planning.draft import Draft
from epe.planning.pool import Assembly, PoolSettings, targets_for, widened
from epe.planning.throughput import saved_s
from epe.planning.view import Assignment, TrajectoryView, View

# Clients whose service differs by less than so many rank-seconds count as equal, so that lanes are not swapped
# for every step.
QUANTUM_S = 1.0


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
        self._service_s: dict[tuple[str, str], float] = {}
        self._given_s: dict[str, float] = {}

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        self._charge(draft)
        if not draft.free:
            return ()
        order = self._order(view)
        share = max(1, len(view.ranks) // max(1, len({client_of(t) for t in order})))
        targets, spare = targets_for(
            order, len(view.ranks), lambda t, spare: _width(draft, t, min(share, spare))
        )
        targets = widened(targets, spare, lambda t, a, b: saved_s(draft, t, a, b), speeds=draft.speeds)
        Assembly(draft).run(targets, order)
        return draft.plan

    def _charge(self, draft: Draft) -> None:
        """Add what has been given since the last call; forget clients that have had less than any that is here."""
        trajectories = draft.view.trajectories
        clients = {client_of(t) for t in trajectories}
        level_s = min((had for client, had in self._service_s.items() if client in clients), default=0.0)
        kept = {client: had for client, had in self._service_s.items() if had > level_s and is_named(client)}
        service_s = kept | {client: self._service_s.get(client, level_s) for client in clients}
        given_s = {t.request_id: _given_s(draft, t) for t in trajectories}
        for trajectory in trajectories:
            name = trajectory.request_id
            more_s = given_s[name] - self._given_s.get(name, 0.0)
            service_s[client_of(trajectory)] += more_s / 2.0 ** max(-8, min(8, trajectory.priority))
        self._service_s, self._given_s = service_s, given_s

    def _order(self, view: View) -> list[TrajectoryView]:
        """Starved requests, then round by round one request of each client, least served clients first."""
        queues: defaultdict[tuple[str, str], list[TrajectoryView]] = defaultdict(list)
        for trajectory in sorted(view.trajectories, key=lambda t: (-t.priority, t.arrival_s, t.request_id)):
            queues[client_of(trajectory)].append(trajectory)
        places = {t.request_id: place for queue in queues.values() for place, t in enumerate(queue)}

        def key(trajectory: TrajectoryView) -> tuple[bool, int, int, float, str]:
            starved = trajectory.unserved_s(view.now_s) > self.settings.starvation_s
            served = int(self._service_s[client_of(trajectory)] / QUANTUM_S)
            place = places[trajectory.request_id]
            return not starved, place, served, trajectory.arrival_s, trajectory.request_id

        return sorted(view.trajectories, key=key)[: self.settings.max_looked_at]


def client_of(trajectory: TrajectoryView) -> tuple[str, str]:
    """Whose service a request counts for: its client's, or its own."""
    return (trajectory.client_id, "") if trajectory.client_id else ("", trajectory.request_id)


def is_named(client: tuple[str, str]) -> bool:
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
