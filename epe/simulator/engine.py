"""The real policies and the planner's own books on a virtual clock: one world, one policy, thousands of requests
in seconds. Events of the same moment are all taken before the policy is asked."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from enum import IntEnum
from itertools import count
from typing import NoReturn, Protocol, runtime_checkable

from epe.errors import BadSetting
from epe.planning.costs import CostTable
from epe.planning.faults import fault_among
from epe.planning.view import MAX_LEASES, Assignment, Policy, TrajectoryView, View
from epe.simulator.arrivals import Arrival
from epe.simulator.books import Books
from epe.simulator.machine import Machine, Physics
from epe.simulator.outcome import Outcome, Work

# Sums of seconds that mean the same moment differ in their last digits.
SAME_MOMENT_S = 1e-9
# A little late, so that rounding cannot ring the alarm too early again and again.
ALARM_LATE_S = 1e-4
MAX_IDLE_WAKES = 10_000


@runtime_checkable
class Waking(Protocol):
    """A policy that wants to be asked again at a time of its own (rounds, pulses), though nothing happens."""

    def plan(self, view: View) -> tuple[Assignment, ...]: ...

    def wake_s(self, view: View) -> float | None:
        """When, on the clock of the view, later than now; None: at the next event. Asked after each plan, unless
        that is followed by another at once."""


def simulate(
    arrivals: Sequence[Arrival],
    *,
    policy: Policy,
    name: str,
    costs: CostTable,
    world_size: int,
    physics: Physics | None = None,
    truth: CostTable | None = None,
    finish_s: float = 0.0,
    fallback: Policy | None = None,
    correct_costs: bool = False,
    knows_reuse: bool = True,
    decode_widths: tuple[int, ...] = (1,),
) -> Outcome:
    """Run a workload to its end under one policy; `name` is what errors call it.

    The policy sees `costs`; tasks take what `truth` says (the same table, if not given). A plan against the rules
    ends the run with `BadSetting`, or hands over to `fallback`, as in the service. `correct_costs` corrects `costs`
    by what tasks took, as the service does (so the table is changed). `finish_s` is the time from the decoded
    picture to its file, where `truth` has no cost of it. Without `knows_reuse` the planner takes steps that
    FlexCache makes for computed ones. Lanes of `decode_widths` may decode.
    """
    machine = Machine(world_size, truth=truth or costs, physics=physics or Physics())
    books = Books(
        arrivals,
        machine=machine,
        costs=costs,
        correct_costs=correct_costs,
        knows_reuse=knows_reuse,
        decode_widths=decode_widths,
    )
    return Simulation(books, policy=policy, name=name, fallback=fallback, finish_s=finish_s).run()


class _Kind(IntEnum):
    """Of events at the same moment the earlier kind goes first."""

    LEFT = 0
    RAN = 1
    FINISHED = 2
    ARRIVED = 3
    DEADLINE = 4


class Simulation:
    """The clock of one run: takes events and asks the policy, as the planner does after each message."""

    def __init__(
        self, books: Books, *, policy: Policy, name: str, fallback: Policy | None, finish_s: float
    ) -> None:
        self.books = books
        self.physics = books.physics
        self.policy = policy
        self.name = name
        self.fallback = fallback
        self.finish_s = finish_s
        self._wakes = policy if isinstance(policy, Waking) else None
        self.replaced: str | None = None
        self.plan_s: list[float] = []
        self.now_s = 0.0
        self.planner_free_s = 0.0
        self.alarm_s = math.inf
        self.idle_wakes = 0
        self._events: list[tuple[float, _Kind, int, str, Work | None]] = []
        self._order = count()

    def run(self) -> Outcome:
        for name, arrival in self.books.arrivals.items():
            self._at(arrival.arrival_s, _Kind.ARRIVED, name)
            if arrival.request.on_deadline == "expire" and arrival.deadline_s is not None:
                self._at(arrival.deadline_s, _Kind.DEADLINE, name)
        while self._events or self.books.waiting:
            self._advance()
            self._take_events()
            if self.now_s + SAME_MOMENT_S < self.planner_free_s:
                self.alarm_s = self.planner_free_s
            else:
                self._plan()
        return Outcome(
            policy=self.name,
            world_size=self.books.ledger.world_size,
            records=tuple(self.books.records),
            work=tuple(self.books.machine.work),
            plan_s=tuple(self.plan_s),
            replaced=self.replaced,
        )

    # --- events ---

    def _at(self, time_s: float, kind: _Kind, name: str, work: Work | None = None) -> None:
        heapq.heappush(self._events, (time_s, kind, next(self._order), name, work))

    def _advance(self) -> None:
        """On to the next event, or to the moment at which the policy is to be asked."""
        next_s = min(self._events[0][0] if self._events else math.inf, self.alarm_s)
        if next_s == math.inf or self.idle_wakes > MAX_IDLE_WAKES:
            self._fail(f"{len(self.books.waiting)} requests wait, nothing runs, and it gives no lease")
        self.now_s = max(self.now_s, next_s)
        self.alarm_s = math.inf

    def _take_events(self) -> None:
        """All that happens at this moment."""
        books, now_s = self.books, self.now_s
        while self._events and self._events[0][0] <= now_s + SAME_MOMENT_S:
            _, kind, _, name, work = heapq.heappop(self._events)
            self.idle_wakes = 0
            match kind:
                case _Kind.LEFT:
                    assert work is not None
                    books.left(work, now_s=now_s)
                case _Kind.RAN:
                    assert work is not None
                    if books.ran(work, now_s=now_s):
                        self._at(work.end_s + self._finish_s(name), _Kind.FINISHED, name)
                case _Kind.FINISHED:
                    books.finished(name, now_s=now_s)
                case _Kind.ARRIVED:
                    books.arrived(name)
                case _Kind.DEADLINE:
                    books.expired(name, now_s=now_s)

    def _finish_s(self, name: str) -> float:
        """The making of the file: as the costs have it for this size, else `finish_s`."""
        return self.books.machine.finish_s(self.books.arrivals[name].workload) or self.finish_s

    # --- plans ---

    def _plan(self) -> None:
        trajectories: Sequence[TrajectoryView] = self.books.waiting
        if self.physics.clairvoyant:
            trajectories = (*trajectories, *self.books.coming(now_s=self.now_s))
        if not trajectories:
            return
        view = self.books.view(now_s=self.now_s, trajectories=trajectories)
        leased = False
        if view.open_ranks and any(t.num_leases < MAX_LEASES for t in trajectories):
            begin_s = time.perf_counter()
            plan = self._decide(view)
            self._lease(plan, took_s=time.perf_counter() - begin_s)
            leased = bool(plan)
        self._set_alarm(view, leased=leased)

    def _lease(self, plan: tuple[Assignment, ...], *, took_s: float) -> None:
        self.plan_s.append(took_s)
        self.planner_free_s = self.now_s + (took_s if self.physics.plan_s is None else self.physics.plan_s)
        for assignment in plan:
            work = self.books.lease(assignment, now_s=self.now_s, sent_s=self.planner_free_s)
            if len(work.ranks) > 1:
                self._at(work.end_s, _Kind.LEFT, work.request_id, work)
            self._at(self.books.machine.reported_s(work), _Kind.RAN, work.request_id, work)

    def _decide(self, view: View) -> tuple[Assignment, ...]:
        """The policy's plan; one that raises or plans nonsense is replaced, if there is a fallback."""
        try:
            plan = self.policy.plan(view)
            fault = self._fault(view, plan)
        except Exception as error:  # a user's policy may raise anything
            fault = f"it raised {type(error).__name__}: {error}"
        if fault is None:
            return plan
        if self.fallback is None or self.policy is self.fallback:
            self._fail(fault)
        self._wakes = self.fallback if isinstance(self.fallback, Waking) else None
        self.policy, self.replaced = self.fallback, f"at {self.now_s:.3f} s: {fault}"
        return self._decide(view)

    def _fault(self, view: View, plan: tuple[Assignment, ...]) -> str | None:
        known = self.books.waiting.by_id
        if self.physics.clairvoyant:
            known = {t.request_id: t for t in view.trajectories}
        if fault := fault_among(known, plan, open_ranks=view.open_ranks):
            return fault
        machine = self.books.machine
        for assignment in plan:
            trajectory, width = known[assignment.request_id], len(assignment.ranks)
            if not machine.covers(trajectory.workload, trajectory.stage, width):
                allowed = ", ".join(map(str, machine.widths(trajectory.workload)))
                return f"no cost is known for a lane of {width} ranks; known widths are {allowed}"
        return None

    def _set_alarm(self, view: View, *, leased: bool) -> None:
        """Ask again as soon as the plan's leases are sent, if ranks are open still; else when the next rank is about to
        be free, or when the policy wants to be asked."""
        ranks = self.books.view(now_s=self.now_s, trajectories=()) if leased else view
        if leased and ranks.open_ranks:
            self.alarm_s = self.planner_free_s
            return
        opening_s = ranks.next_opening_s
        self.alarm_s = math.inf if opening_s is None else opening_s + ALARM_LATE_S
        wake_s = self._wake_s(view)
        if wake_s is not None:
            self.idle_wakes += not self._events
            self.alarm_s = min(self.alarm_s, max(wake_s, self.now_s + ALARM_LATE_S))

    def _wake_s(self, view: View) -> float | None:
        """When the policy wants to be asked, if it says so."""
        if self._wakes is None:
            return None
        try:
            wake_s = self._wakes.wake_s(view)
            in_future = wake_s is None or wake_s > self.now_s
        except Exception as error:  # a user's policy may raise anything
            self._fail(f"its wake_s raised {type(error).__name__}: {error}")
        if not in_future:
            self._fail(f"it asks to be woken at {wake_s:.6f} s, which is not later than now")
        return wake_s

    def _fail(self, fault: str) -> NoReturn:
        raise BadSetting(f"at {self.now_s:.3f} s: {fault}", path=f"policy {self.name}")
