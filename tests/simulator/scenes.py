"""A small machine with round numbers, and policies that do what a test says."""

from __future__ import annotations

import random
from collections.abc import Callable

from msgspec.structs import replace

from epe.messages import Stage
from epe.planning.costs import Migration
from epe.planning.view import MAX_LEASES, Assignment, View
from epe.simulator.arrivals import Arrival, best_s, request_of, single_s
from epe.simulator.costs import CostSet, Size, TaskCost
from epe.simulator.engine import simulate
from epe.simulator.machine import Physics
from epe.simulator.outcome import Outcome

STEP_S = {1: 4.0, 2: 3.0, 4: 2.0}


def _size(name: str, side: int) -> Size:
    return Size(name=name, family="zimage", height=side, width=side, num_steps=2)


SMALL, LARGE = _size("small", 256), _size("large", 512)


def machine(**fields: object) -> CostSet:
    """Encode 1 s, a step 4, 3 or 2 s on 1, 2 or 4 ranks, decode 2 s; large requests take twice as long to step."""
    tasks = [
        TaskCost(stage="denoise", tokens=size.workload.tokens, width=width, seconds=seconds * factor)
        for size, factor in ((SMALL, 1.0), (LARGE, 2.0))
        for width, seconds in STEP_S.items()
    ]
    for size in (SMALL, LARGE):
        tasks.append(TaskCost(stage="encode", tokens=size.workload.tokens, seconds=1.0))
        tasks.append(TaskCost(stage="decode", tokens=size.workload.tokens, seconds=2.0))
    values = {"migration": Migration(latency_s=0.5, bytes_per_s=1e300), "sizes": (SMALL, LARGE), **fields}
    return CostSet(name="round", tasks=tuple(tasks), **values)


def arrival(
    name: str,
    at_s: float = 0.0,
    *,
    size: Size = SMALL,
    steps: int = 2,
    deadline_s: float | None = None,
    expire: bool = False,
) -> Arrival:
    workload = size.workload
    costs = machine().table([workload], world_size=4)
    return Arrival(
        arrival_s=at_s,
        request=request_of(
            name,
            height=size.height,
            width=size.width,
            num_frames=1,
            num_steps=steps,
            conditions=1,
            deadline_s=deadline_s,
            expire=expire,
        ),
        workload=workload,
        size=size.name,
        single_s=single_s(costs, workload, num_steps=steps),
        best_s=best_s(costs, workload, num_steps=steps),
    )


def run(
    policy: object,
    *arrivals: Arrival,
    world: int = 4,
    physics: Physics | None = None,
    costs: CostSet | None = None,
    **fields: object,
) -> Outcome:
    table = (costs or machine()).table({a.workload for a in arrivals}, world_size=world)
    return simulate(
        arrivals,
        policy=policy,
        name="mine",
        costs=table,
        world_size=world,
        physics=physics or Physics(look_ahead_s=0.0),
        **fields,
    )


class OneRank:
    """Each request on rank 0, first come first served, one step a lease, never ahead."""

    def plan(self, view: View) -> tuple[Assignment, ...]:
        if view.ranks[0].num_leases or not view.trajectories:
            return ()
        return (task(view.trajectories[0], 0),)


class Lanes:
    """Given lanes by request and stage (decode on the first rank of the steps), as soon as they are open;
    `steps` a lease."""

    def __init__(self, lanes: dict[str, tuple[int, ...]], *, encode: int = 0, steps: int = 1) -> None:
        self.lanes = lanes
        self.encode = encode
        self.steps = steps
        self.views: list[View] = []

    def plan(self, view: View) -> tuple[Assignment, ...]:
        # The books go on; what was seen stays.
        self.views.append(replace(view, trajectories=tuple(view.trajectories)))
        plan, taken = [], set()
        for trajectory in view.trajectories:
            lane = self.lanes[trajectory.request_id]
            ranks = {Stage.ENCODE: (self.encode,), Stage.DENOISE: lane}.get(trajectory.stage, lane[:1])
            if view.open_ranks.issuperset(ranks) and not taken & set(ranks):
                taken |= set(ranks)
                plan.append(task(trajectory, *ranks, steps=self.steps))
        return tuple(plan)


class Chance:
    """Plans that keep to the rules and follow no reason at all (but never leave all ranks idle for ever)."""

    def __init__(self, seed: int, widths: tuple[int, ...] = (1, 2, 4)) -> None:
        self.random = random.Random(seed)
        self.widths = widths

    def plan(self, view: View) -> tuple[Assignment, ...]:
        free = sorted(view.open_ranks)
        self.random.shuffle(free)
        waiting = [t for t in view.trajectories if t.num_leases < MAX_LEASES]
        self.random.shuffle(waiting)
        plan = []
        idle = all(rank.num_leases == 0 for rank in view.ranks)
        for trajectory in waiting:
            width = self.random.choice([w for w in self.widths if w <= len(view.ranks)])
            width = width if trajectory.stage is Stage.DENOISE else 1
            if width <= len(free) and (self.random.random() < 0.7 or (idle and not plan)):
                ranks = [free.pop() for _ in range(width)]
                left = max(1, trajectory.num_steps - trajectory.step)
                plan.append(task(trajectory, *ranks, steps=self.random.randint(1, left)))
        return tuple(plan) or self._something(view, waiting)

    def _something(self, view: View, waiting: list) -> tuple[Assignment, ...]:
        if any(rank.num_leases for rank in view.ranks) or not waiting:
            return ()
        return (task(waiting[0], 0),)


class Does:
    """What a function of the view says."""

    def __init__(self, plan: Callable[[View], tuple[Assignment, ...]]) -> None:
        self.plan = plan


def task(trajectory, *ranks: int, steps: int = 1) -> Assignment:
    left = trajectory.num_steps - trajectory.step
    num_steps = min(steps, left) if trajectory.stage is Stage.DENOISE else 0
    return Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=num_steps)
