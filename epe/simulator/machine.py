"""When leases really run: ranks in the order of `seq`, state that has to come, tasks that vary. The planner's
books may expect something else."""

from __future__ import annotations

import random
from itertools import accumulate

from msgspec import Struct

from epe.messages import Lease, Stage
from epe.planning.costs import CostTable, Workload
from epe.planning.work import cost_key
from epe.simulator.arrivals import Arrival
from epe.simulator.outcome import Work


class Physics(Struct, frozen=True, kw_only=True):
    """What happens beside computing.

    A lease reaches its ranks `dispatch_s` after it was planned (there and back in one number). Its head reports an
    encode, or steps, `report_s` after they ended, since their state comes with the report. A plan takes `plan_s`, or
    what it really took if that is None (then two runs differ); events wait meanwhile. Each task takes 1 - `jitter` to
    1 + `jitter` times its cost, the same for every policy of a seed. With `clairvoyant`, requests that arrive within
    `foresight_s` are in the view already: their `arrival_s` and `ready_s` are in the future, and a lease that is given
    to one makes its ranks wait until it is there.
    """

    dispatch_s: float = 0.0
    report_s: float = 0.0
    plan_s: float | None = 0.0
    jitter: float = 0.0
    seed: int = 0
    look_ahead_s: float = 0.05
    clairvoyant: bool = False
    foresight_s: float = float("inf")


class Machine:
    """The ranks. Nothing withdraws a lease, so the end of one is known as soon as it is sent."""

    def __init__(self, world_size: int, *, truth: CostTable, physics: Physics) -> None:
        self.truth = truth
        self.physics = physics
        self.free_s = [0.0] * world_size
        self.state_s: dict[str, float] = {}
        self._longest_wait_s: dict[str, float] = {}
        self.work: list[Work] = []
        self._factors: dict[str, list[float]] = {}

    def run(self, lease: Lease, arrival: Arrival, *, sent_s: float) -> Work:
        """Runs after all earlier leases of its ranks, when the state of its request has come to all of them."""
        reached_s = max(sent_s + self.physics.dispatch_s, arrival.arrival_s)
        ranks, name = lease.lane.ranks, arrival.request.id
        state_s = self.state_s.get(name, arrival.arrival_s)
        begin_s = max(reached_s, state_s, *(self.free_s[rank] for rank in ranks))
        if lease.transfers:
            # Ranks fetch at the same time, and while they still work on earlier leases.
            state_bytes = arrival.workload.state_bytes
            moved_s = max(self.truth.migration_s(state_bytes, t.pair) for t in lease.transfers)
            begin_s = max(begin_s, max(reached_s, state_s) + moved_s)
        end_s = begin_s + self._seconds(lease, arrival)
        for rank in ranks:
            self.free_s[rank] = end_s
        self.state_s[name] = end_s
        self._longest_wait_s[name] = max(self._longest_wait_s.get(name, 0.0), begin_s - state_s)
        return self._noted(lease, begin_s, end_s)

    def reported_s(self, work: Work) -> float:
        """When the report of its head comes; other ranks report at once."""
        return work.end_s if work.stage is Stage.DECODE else work.end_s + self.physics.report_s

    def covers(self, workload: Workload, stage: Stage, width: int) -> bool:
        """Whether it is known what the task costs."""
        return cost_key(workload, stage, width) in self.truth.measured

    def widths(self, workload: Workload) -> tuple[int, ...]:
        """Lane widths for whose steps a cost is known."""
        world = range(1, len(self.free_s) + 1)
        return tuple(width for width in world if self.covers(workload, Stage.DENOISE, width))

    def finish_s(self, workload: Workload) -> float:
        """Seconds from the decoded picture to its file, off the ranks; 0 where no cost is known."""
        return self.truth.measured.get(cost_key(workload, Stage.FINISH, 1), 0.0)

    def ended(self, request_id: str, *, unserved_s: float) -> float:
        """Nothing more of this request will run: its longest wait for a lease (`unserved_s` if it never ran)."""
        self.state_s.pop(request_id, None)
        self._factors.pop(request_id, None)
        return self._longest_wait_s.pop(request_id, unserved_s)

    def _noted(self, lease: Lease, begin_s: float, end_s: float) -> Work:
        work = Work(
            seq=lease.seq,
            begin_s=begin_s,
            end_s=end_s,
            ranks=lease.lane.ranks,
            request_id=lease.request.id,
            stage=lease.stage,
            first_step=lease.first_step,
            num_steps=lease.num_steps,
        )
        self.work.append(work)
        return work

    def _seconds(self, lease: Lease, arrival: Arrival) -> float:
        seconds = self.truth.measured[cost_key(arrival.workload, lease.stage, lease.lane.width)]
        if not self.physics.jitter:
            return seconds * lease.num_tasks
        until = self._factors.get(arrival.request.id) or self._draw(
            arrival.request.id, lease.request.num_steps
        )
        match lease.stage:
            case Stage.ENCODE:
                return seconds * until[1]
            case Stage.DENOISE:
                first = 1 + lease.first_step
                return seconds * (until[first + lease.num_steps] - until[first])
            case _:
                return seconds * (until[-1] - until[-2])

    def _draw(self, request_id: str, num_steps: int) -> list[float]:
        """Summed factors before each task of a request, in the order of its tasks: what varies is the task,
        not the lease, so every policy of a seed meets the same luck."""
        source = random.Random(f"{self.physics.seed}/{request_id}")
        low, high = 1 - self.physics.jitter, 1 + self.physics.jitter
        factors = (source.uniform(low, high) for _ in range(num_steps + 2))
        until = self._factors[request_id] = [0.0, *accumulate(factors)]
        return until
