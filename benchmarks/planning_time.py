"""How long a plan takes, through the leader's own books, by the number of requests that wait.

    python benchmarks/planning_time.py --output docs/results/planning-time.md

A service is played by hand: leases end when their costs say, every end and every arrival asks for the next plan, and a
request that is drawn is followed by a new one, so that as many wait all the time.
"""

from __future__ import annotations

import argparse
import heapq
import os
import platform
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from scheduling_markdown import cores

from epe.actors.admission import Limits
from epe.actors.leasing import Leasing, PlannerSettings
from epe.actors.ledger import Ledger
from epe.actors.roster import Roster
from epe.actors.trajectory import Trajectory
from epe.families import family
from epe.messages import Lease, LeaseDone, RankReady, Stage
from epe.planning.elastic import Elastic, ElasticSettings
from epe.simulator.arrivals import request_of
from epe.simulator.metrics import percentile
from epe.simulator.mixes import mix_of
from epe.simulator.published import wan

WORLD = 8
QUEUES = (10, 100, 1_000, 10_000)
GUARD_S, STARVATION_S = 3.0, 30.0
NUM_ADMISSIONS = 200

# Seconds after arrival, or None, from a chance between 0 and 1 and the request's best latency.
Deadline = Callable[[float, float], float | None]

# With thousands waiting most requests are late: so the reachable deadlines are spread over hours.
DEADLINES: dict[str, tuple[str, Deadline]] = {
    "none": ("no deadlines", lambda chance, best_s: None),
    "tight": (
        "1.1 to 3 times the best latency, so that nearly all are late",
        lambda c, s: s * (1.1 + 1.9 * c),
    ),
    "wide": ("up to ten days, so that nearly all can be in time", lambda c, s: s * 1.1 + c * 864_000),
    "mixed": (
        "a third of each",
        lambda c, s: None if c < 1 / 3 else s * (1 + 3 * c) if c < 2 / 3 else s + (c - 2 / 3) * 2_592_000,
    ),
}


@dataclass
class Times:
    """Seconds of each plan or admission: of this process's work, and of the clock on the wall."""

    process_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)

    def add(self, process_s: float, wall_s: float) -> None:
        """One that began at these times."""
        self.process_s.append(time.process_time() - process_s)
        self.wall_s.append(time.perf_counter() - wall_s)

    def cells(self) -> list[str]:
        """Milliseconds for the table."""
        return [
            f"{1e3 * percentile(seconds, share):.2f}"
            for seconds in (self.process_s, self.wall_s)
            for share in (0.5, 0.99, 1.0)
        ]


class Played:
    """The books of a service with `num_waiting` requests, and what becomes of its leases."""

    def __init__(self, *, num_waiting: int, max_inflight: int, deadline: Deadline, seed: int) -> None:
        cost_set = wan()
        self.mix = mix_of("small", cost_set)
        costs = cost_set.table([size.workload for size in self.mix.sizes], world_size=WORLD)
        widths = cost_set.widths(WORLD)
        roster = Roster(WORLD)
        for rank in range(WORLD):
            roster.enter(RankReady(rank=rank, device="cpu", fingerprint="", load_s=0.0))
        policy = Elastic(ElasticSettings(widths=widths, deadline_guard_s=GUARD_S, starvation_s=STARVATION_S))
        self.leasing = Leasing(
            PlannerSettings(
                family=family("wan"),
                widths=widths,
                cfg_parallel_degree=1,
                correct_costs=False,
                limits=Limits(max_pending=num_waiting, max_inflight=max_inflight),
            ),
            policy=policy,
            fallback=policy,
            costs=costs,
            ledger=Ledger(WORLD),
            roster=roster,
        )
        self.deadline = deadline
        self.chance = random.Random(seed)
        self.ends: list[tuple[float, int, Lease]] = []
        self.now_s = 0.0
        self.planning, self.admitting = Times(), Times()
        for _ in range(num_waiting):
            self.arrive()

    def arrive(self) -> None:
        """One more request waits."""
        index = self.mix.draw(self.chance)
        size = self.mix.sizes[index]
        best_s = self.mix.single_s[index] / WORLD
        request = request_of(
            f"{self.chance.getrandbits(48):012x}",
            height=size.height,
            width=size.width,
            num_frames=size.num_frames,
            num_steps=size.num_steps,
            conditions=size.conditions,
            deadline_s=self.deadline(self.chance.random(), best_s),
        )
        process_s, wall_s = time.process_time(), time.perf_counter()
        self.leasing.admit(request, now_s=self.now_s, for_client=True)
        self.leasing.predicted_s(request.id, now_s=self.now_s)
        self.admitting.add(process_s, wall_s)

    def plan(self) -> None:
        """Ask for the next leases, as the planner does after each event."""
        process_s, wall_s = time.process_time(), time.perf_counter()
        leases = list(self.leasing.next_leases(now_s=self.now_s))
        self.leasing.next_opening_s(now_s=self.now_s)
        self.planning.add(process_s, wall_s)
        for lease in leases:
            heapq.heappush(self.ends, (self.leasing.ledger.running[lease.seq].ends_s, lease.seq, lease))

    def go_on(self) -> None:
        """To the end of the next lease."""
        self.now_s, _, lease = heapq.heappop(self.ends)
        trajectory = self.leasing.trajectories[lease.request.id]
        running = self.leasing.ledger.running[lease.seq]
        seconds = running.expected_s / max(1, lease.num_steps)
        next_step = lease.first_step + lease.num_steps
        for rank in lease.lane.ranks:
            report = LeaseDone(seq=lease.seq, epoch=0, rank=rank, next_step=next_step, seconds=seconds)
            self.leasing.ledger.answer(report, now_s=self.now_s)
        for ended in trajectory.ended():
            trajectory.ran(ended, now_s=self.now_s)
        self._replace_if_drawn(trajectory)

    def _replace_if_drawn(self, trajectory: Trajectory) -> None:
        if trajectory.stage is Stage.FINISH and not trajectory.leases:
            del self.leasing.trajectories[trajectory.request.id]
            self.arrive()


def measure(*, num_waiting: int, max_inflight: int, deadline: Deadline, num_plans: int) -> Played:
    """So many plans, after a tenth as many that do not count."""
    played = Played(num_waiting=num_waiting, max_inflight=max_inflight, deadline=deadline, seed=1)
    for number in range(num_plans + num_plans // 10):
        if number == num_plans // 10:
            played.planning = Times()
        played.plan()
        played.go_on()
    # More of them, since few requests end in so many plans; each makes the queue one longer.
    played.admitting = Times()
    for _ in range(NUM_ADMISSIONS):
        played.arrive()
    return played


def row(num_waiting: int, name: str, *, max_inflight: int, num_plans: int) -> str:
    """A line of the table; milliseconds."""
    deadline = DEADLINES[name][1]
    played = measure(
        num_waiting=num_waiting, max_inflight=max_inflight, deadline=deadline, num_plans=num_plans
    )
    admitting = played.admitting.cells()[:3]
    cells = " | ".join([*played.planning.cells(), *admitting])
    return f"| {num_waiting:,} | {min(num_waiting, max_inflight):,} | {name} | {cells} |"


def page(rows: list[str], *, num_plans: int) -> str:
    kinds = "; ".join(f"*{name}*: {what}" for name, (what, _) in DEADLINES.items())
    return f"""# Planning time

`python benchmarks/planning_time.py --plans {num_plans} --output docs/results/planning-time.md`,
{datetime.now(UTC):%Y-%m-%d}, on {platform.machine()} with {cores()} (load average {os.getloadavg()[1]:.1f}
over the last five minutes, other work included), Python {platform.python_version()}. `elastic` on {WORLD} ranks through
the leader's own books (`Leasing`), Wan costs, mix `small`; {num_plans:,} plans a line.

*Seen* is how many of the requests that wait the policy is shown (`max_inflight_requests`). *Process* is the processor
time of a plan, *wall* the time on the clock, in which other work on the machine counts too. A plan is everything from
an event to the leases: the view, the policy, the check of its plan, the entries in the books and the next alarm.
*Admission* is the processor time of taking a request into the books and predicting its finish, {NUM_ADMISSIONS} times.

Deadlines: {kinds}.

| waiting | seen | deadlines | process ms: p50 | p99 | most | wall ms: p50 | p99 | most | admission: p50 | p99 | most |
| --: | --: | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |
{chr(10).join(rows)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=3_000)
    parser.add_argument("--queues", type=int, nargs="*", default=QUEUES)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows = []
    for num_waiting in args.queues:
        for name in DEADLINES:
            for max_inflight in sorted({min(64, num_waiting), num_waiting}):
                rows.append(row(num_waiting, name, max_inflight=max_inflight, num_plans=args.plans))
                print(rows[-1], flush=True)
    if args.output is not None:
        args.output.write_text(page(rows, num_plans=args.plans))


if __name__ == "__main__":
    main()
