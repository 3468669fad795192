"""Static sequence parallelism: the world is cut into lanes of one width, each runs one request at a time to its end.

What xDiT and most services do (and the first baseline of TetriServe, GF-DiT and DDiT): first come, first served.
"""

from __future__ import annotations

from epe.errors import BadSetting
from epe.messages import Stage
from epe.planning.order import by_arrival
from epe.planning.view import MAX_LEASES, Assignment, TrajectoryView, View
from epe.simulator.baselines.settings import BaselineSettings

Lane = tuple[int, ...]


class StaticSp:
    """Lanes of `width` ranks; a request keeps its lane, which stands still while one of its ranks decodes."""

    def __init__(self, settings: BaselineSettings, *, width: int) -> None:
        if width not in settings.widths or width > settings.world_size:
            allowed = ", ".join(map(str, settings.widths))
            raise BadSetting(
                f"lanes of {width} ranks do not fit; this world has {settings.world_size} ranks "
                f"and costs for the widths {allowed}",
                path=f"static-sp{width}",
            )
        last = settings.world_size - width + 1
        self.lanes: tuple[Lane, ...] = tuple(
            tuple(range(first, first + width)) for first in range(0, last, width)
        )

    def plan(self, view: View) -> tuple[Assignment, ...]:
        owners = {t.lane[0]: t for t in view.trajectories if t.lane}
        waiting = iter([t for t in by_arrival(view) if not t.lane])
        leases = {rank.rank: rank.num_leases for rank in view.ranks}
        plan = []
        for lane in self.lanes:
            owner = owners.get(lane[0])
            if owner is None and not any(leases[rank] for rank in lane):
                owner = next(waiting, None)
            if owner is not None and owner.num_leases < MAX_LEASES and view.open_ranks.issuperset(lane):
                plan.append(_next_task(owner, lane))
        return tuple(plan)


def _next_task(trajectory: TrajectoryView, lane: Lane) -> Assignment:
    """All steps in one lease: nothing is ever taken back."""
    denoise = trajectory.stage is Stage.DENOISE
    return Assignment(
        request_id=trajectory.request_id,
        ranks=lane if denoise else lane[:1],
        num_steps=trajectory.num_steps - trajectory.step if denoise else 0,
    )
