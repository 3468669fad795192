"""What the service plans with when its policy and the default one have failed: too simple to fail."""

from __future__ import annotations

from epe.messages import Stage
from epe.planning.order import by_arrival
from epe.planning.view import Assignment, View


class LastResort:
    """First come, first served, on ranks that idle: one step a lease, as narrow as is allowed. It asks no cost, plans
    nothing ahead and lets nobody pass by, so that nothing starves."""

    def __init__(self, *, widths: tuple[int, ...]) -> None:
        self.widths = widths

    def plan(self, view: View) -> tuple[Assignment, ...]:
        idle = [rank.rank for rank in view.ranks if rank.num_leases == 0]
        plan = []
        for trajectory in by_arrival(view):
            if trajectory.num_leases or not trajectory.has_come(view.now_s):
                continue
            steps = trajectory.stage is Stage.DENOISE
            width = trajectory.workload.widths(self.widths, limit=len(view.ranks))[0] if steps else 1
            if width > len(idle):
                break
            idle.sort(key=lambda rank: rank not in trajectory.holders)
            ranks, idle = tuple(sorted(idle[:width])), idle[width:]
            num_steps = trajectory.steps_with(1) if steps else 0
            plan.append(Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=num_steps))
        return tuple(plan)
