"""Views for policy tests."""

from __future__ import annotations

from epe.messages import Stage
from epe.planning.costs import CostKey, CostTable, Workload
from epe.planning.view import RankView, TrajectoryView, View

SIZES = (256, 1024, 4096, 16384)


def costs(*, speed_up: float = 0.9, world: int = 8) -> CostTable:
    """Steps whose time falls with the width to the power of `speed_up`."""
    measured = {
        CostKey(stage=Stage.DENOISE, tokens=tokens, width=width, conditions=2): 1e-4
        * tokens
        / width**speed_up
        for tokens in SIZES
        for width in range(1, world + 1)
    }
    measured |= {CostKey(stage=Stage.ENCODE, tokens=tokens, conditions=2): 0.01 for tokens in SIZES}
    measured |= {CostKey(stage=Stage.DECODE, tokens=tokens, conditions=1): 1e-5 * tokens for tokens in SIZES}
    return CostTable(measured)


def trajectory(name: str, **fields: object) -> TrajectoryView:
    values: dict = {
        "workload": Workload(tokens=1024, conditions=2, state_bytes=100_000),
        "stage": Stage.DENOISE,
        "step": 0,
        "num_steps": 20,
        "arrival_s": 0.0,
        "served_s": 0.0,
        "ready_s": 0.0,
        "deadline_s": None,
        "priority": 0,
        "lane": (),
        "holders": (0,),
        "num_leases": 0,
    }
    return TrajectoryView(request_id=name, **{**values, **fields})


def view(
    *trajectories: TrajectoryView,
    world: int = 4,
    leases: dict[int, int] | None = None,
    free_s: dict[int, float] | None = None,
    **fields,
) -> View:
    leases, free_s = leases or {}, free_s or {}
    ranks = tuple(
        RankView(rank=r, free_s=free_s.get(r, 0.0) if leases.get(r) else 0.0, num_leases=leases.get(r, 0))
        for r in range(world)
    )
    return View(**{"now_s": 0.0, "ranks": ranks, "trajectories": trajectories, "costs": costs(), **fields})
