"""The two policies that never change a width."""

from __future__ import annotations

from epe.messages import Stage
from epe.planning.order import by_arrival
from epe.planning.view import MAX_LEASES, Assignment, TrajectoryView, View
from epe.planning.work import steps_for


class StaticCp:
    """One request at a time, its steps over the widest lane that is allowed and that its size can have, and its decode
    too, where several ranks may decode."""

    def __init__(self, *, widths: tuple[int, ...], pulse_s: float, pulse_steps: int) -> None:
        self.widths = widths
        self.pulse_s = pulse_s
        self.pulse_steps = pulse_steps

    def plan(self, view: View) -> tuple[Assignment, ...]:
        order = by_arrival(view)
        # A request that has begun is ended first: only one lane exists.
        begun = [t for t in order if t.lane] or order
        if not begun or begun[0].num_leases >= MAX_LEASES:
            return ()
        trajectory = begun[0]
        world = tuple(rank.rank for rank in view.ranks)
        widths = trajectory.workload.widths(self.widths, limit=len(world))
        width = {Stage.ENCODE: 1, Stage.DECODE: view.decode_width(len(world))}.get(
            trajectory.stage, widths[-1]
        )
        ranks = world[:width]
        if not view.open_ranks.issuperset(ranks):
            return ()
        return (_assignment(view, trajectory, ranks, self.pulse_s, self.pulse_steps),)


class StaticDp:
    """Each request on one rank, from its first task to its last."""

    widths = (1,)

    def __init__(self, *, pulse_s: float, pulse_steps: int) -> None:
        self.pulse_s = pulse_s
        self.pulse_steps = pulse_steps

    def plan(self, view: View) -> tuple[Assignment, ...]:
        here = {rank.rank for rank in view.ranks}
        # One whose rank is lost finds another.
        homes = {t.request_id: t.lane[0] for t in view.trajectories if here.issuperset(t.lane) and t.lane}
        owned = set(homes.values())
        open_ranks, plan = set(view.open_ranks), []
        # Idle ones first, then those that are about to be free.
        unowned = (rank for rank in view.ranks if rank.rank in open_ranks - owned)
        free = [rank.rank for rank in sorted(unowned, key=lambda rank: (rank.num_leases, rank.free_s))]
        for trajectory in by_arrival(view):
            home = homes.get(trajectory.request_id)
            if trajectory.num_leases >= MAX_LEASES or (home is None and not free):
                continue
            rank = free.pop(0) if home is None else home
            if rank in open_ranks:
                open_ranks.remove(rank)
                plan.append(_assignment(view, trajectory, (rank,), self.pulse_s, self.pulse_steps))
        return tuple(plan)


def _assignment(
    view: View, trajectory: TrajectoryView, ranks: tuple[int, ...], pulse_s: float, pulse_steps: int
) -> Assignment:
    num_steps = steps_for(view.costs, trajectory, len(ranks), pulse_s=pulse_s, pulse_steps=pulse_steps)
    return Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=num_steps)
