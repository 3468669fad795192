"""The planner's books without its mailbox: its ledger, a trajectory for each request that is alive, and the view."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from epe.actors.ledger import Ledger, Running
from epe.actors.trajectory import Trajectory
from epe.errors import BadSetting
from epe.messages import Failure, FailureKind, Lease, LeaseDone, Split, Stage
from epe.planning.backlog import Backlog
from epe.planning.costs import CostTable
from epe.planning.view import Assignment, TrajectoryView, View
from epe.planning.work import cost_key, with_barred
from epe.simulator.arrivals import Arrival
from epe.simulator.machine import Machine, Physics
from epe.simulator.outcome import Record, Work

# Of what is still to come a clairvoyant policy is shown so many requests: more than it looks at.
MAX_COMING = 64


class Books:
    """Changed by events and leases; `waiting` are the requests that need leases, as policies see them. Without
    `knows_reuse` every step is taken for one that is computed, as in an engine whose planner knows nothing of caches.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        *,
        machine: Machine,
        costs: CostTable,
        correct_costs: bool = False,
        knows_reuse: bool = True,
        decode_widths: tuple[int, ...] = (1,),
    ) -> None:
        self.machine = machine
        self.physics: Physics = machine.physics
        self.costs = costs
        self.correct_costs = correct_costs
        self.knows_reuse = knows_reuse
        self.decode_widths = decode_widths
        self.ledger = Ledger(len(machine.free_s))
        self.arrivals = {each.request.id: _with_barred(each, costs, machine) for each in arrivals}
        self.trajectories: dict[str, Trajectory] = {}
        self.waiting = Backlog()
        self.records: list[Record] = []
        if len(self.arrivals) != len(arrivals):
            raise BadSetting("two requests have the same id", path="workload")
        coming = sorted(arrivals, key=lambda arrival: arrival.arrival_s) if self.physics.clairvoyant else []
        self._coming = [_trajectory(self.arrivals[arrival.request.id]).view for arrival in coming]
        self._coming_s = [arrival.arrival_s for arrival in coming]

    # --- events ---

    def arrived(self, name: str) -> None:
        # A clairvoyant policy may have leased it before.
        trajectory = self.trajectories.setdefault(name, _trajectory(self.arrivals[name]))
        self._refresh(trajectory)

    def left(self, work: Work, *, now_s: float) -> None:
        """All ranks of a lease but its head report."""
        for rank in work.ranks[1:]:
            self._report(work, rank, now_s=now_s)

    def ran(self, work: Work, *, now_s: float) -> bool:
        """The head of a lease reports. True if the picture is decoded, so that only its file is to be made."""
        trajectory = self.trajectories[work.request_id]
        running = self._report(work, work.ranks[0], now_s=now_s)
        assert running is not None
        trajectory.leases.remove(running)
        trajectory.ran(running, now_s=now_s)
        if self.correct_costs and self._num_tasks(running.lease):
            self.costs.observe(cost_key(trajectory.workload, work.stage, len(work.ranks)), running.seconds)
        if trajectory.ending is not None and not trajectory.leases:
            self._end(trajectory, now_s)
            return False
        self._refresh(trajectory)
        return work.stage is Stage.DECODE

    def finished(self, name: str, *, now_s: float) -> None:
        if name in self.trajectories:
            self._end(self.trajectories[name], now_s)

    def expired(self, name: str, *, now_s: float) -> None:
        """At once if nothing runs, else when the leases that were sent have run (as the planner does)."""
        trajectory = self.trajectories.get(name)
        if trajectory is None:
            return
        trajectory.ending = Failure(kind=FailureKind.EXPIRED, message="the deadline has passed")
        if trajectory.leases:
            self._refresh(trajectory)
        else:
            self._end(trajectory, now_s)

    # --- leases ---

    def lease(self, assignment: Assignment, *, now_s: float, sent_s: float) -> Work:
        """Enter a lease that the policy decided at `now_s` and that leaves at `sent_s`; how it will run."""
        name, ranks = assignment.request_id, assignment.ranks
        arrival = self.arrivals[name]
        trajectory = self.trajectories.setdefault(name, _trajectory(arrival))
        seconds = self.costs.seconds(cost_key(trajectory.workload, trajectory.stage, len(ranks)))
        num_steps = assignment.num_steps if trajectory.stage is Stage.DENOISE else 0
        transfers = trajectory.transfers(ranks)
        running = self.ledger.enter(
            trajectory.request,
            ranks=ranks,
            stage=trajectory.stage,
            first_step=trajectory.step,
            num_steps=num_steps,
            split=Split(cp=len(ranks)),
            transfers=transfers,
            now_s=now_s,
            ready_s=max(arrival.arrival_s, trajectory.state_s(transfers, self.costs, now_s=now_s)),
            expected_s=seconds * (trajectory.num_tasks(num_steps) if self.knows_reuse else max(1, num_steps)),
        )
        trajectory.leased(running)
        self._refresh(trajectory)
        return self.machine.run(running.lease, arrival, sent_s=sent_s)

    # --- what the policy sees ---

    def view(self, *, now_s: float, trajectories: Sequence[TrajectoryView]) -> View:
        return View(
            now_s=now_s,
            ranks=self.ledger.rank_views(now_s=now_s),
            trajectories=trajectories,
            costs=self.costs,
            decode_widths=self.decode_widths,
            look_ahead_s=self.physics.look_ahead_s,
        )

    def coming(self, *, now_s: float) -> tuple[TrajectoryView, ...]:
        """For a clairvoyant policy: the next requests that have not arrived and have no lease yet."""
        first = bisect_right(self._coming_s, now_s + 1e-9)
        last = bisect_right(self._coming_s, now_s + self.physics.foresight_s)
        coming = (t for t in self._coming[first:last] if t.request_id not in self.trajectories)
        return tuple(islice(coming, MAX_COMING))

    def _refresh(self, trajectory: Trajectory) -> None:
        if trajectory.wants_lease:
            self.waiting.put(self._seen(trajectory.view))
        else:
            self.waiting.drop(trajectory.request.id)

    def _seen(self, view: TrajectoryView) -> TrajectoryView:
        return view if self.knows_reuse else replace(view, reuse=None)

    def _report(self, work: Work, rank: int, *, now_s: float) -> Running | None:
        """One rank has ended its lease; the lease if this was its last rank."""
        num_tasks = self._num_tasks(self.ledger.running[work.seq].lease)
        report = LeaseDone(
            seq=work.seq,
            epoch=0,
            rank=rank,
            next_step=work.first_step + work.num_steps,
            seconds=(work.end_s - work.begin_s) / max(1, num_tasks),
        )
        return self.ledger.answer(report, now_s=now_s)

    def _num_tasks(self, lease: Lease) -> int:
        return lease.num_tasks if self.knows_reuse else max(1, lease.num_steps)

    def _end(self, trajectory: Trajectory, now_s: float) -> None:
        name = trajectory.request.id
        arrival = self.arrivals[name]
        del self.trajectories[name]
        self.waiting.drop(name)
        self.records.append(
            Record(
                request_id=name,
                size=arrival.size,
                client_id=arrival.request.client_id,
                end="finished" if trajectory.ending is None else "expired",
                arrival_s=arrival.arrival_s,
                started_s=trajectory.accounting.started_s,
                finish_s=now_s,
                deadline_s=arrival.deadline_s,
                single_s=arrival.single_s,
                best_s=arrival.best_s,
                longest_wait_s=self.machine.ended(name, unserved_s=now_s - arrival.arrival_s),
                num_migrations=trajectory.accounting.num_migrations,
                visits=tuple(trajectory.accounting.visits),
            )
        )


def _with_barred(arrival: Arrival, costs: CostTable, machine: Machine) -> Arrival:
    """The arrival as the planner would take it: without the widths that do not fit into memory."""
    if costs.memory.limit_bytes is None:
        return arrival
    return replace(arrival, workload=with_barred(costs, arrival.workload, machine.widths(arrival.workload)))


def _trajectory(arrival: Arrival) -> Trajectory:
    return Trajectory(arrival.request, arrival.workload, now_s=arrival.arrival_s, for_client=True)
