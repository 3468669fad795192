"""Whether what FlexCache keeps of a request moves with it, or stays behind and one more step is computed instead."""

from __future__ import annotations

from collections.abc import Iterable

from epe.cache import num_kept, refreshed, sizes_of
from epe.families import Family
from epe.messages import Request, Reuse, Transfer
from epe.planning.costs import CostTable


def cheaper_plan(
    request: Request,
    step: int,
    transfers: Iterable[Transfer],
    *,
    family: Family,
    costs: CostTable,
    step_s: float,
) -> Reuse | None:
    """The plan with which a request goes on at `step` if what is kept of it is let go; None where nothing is kept, or
    to move it takes no longer than the step of `step_s` seconds that would be computed for it."""
    reuse, num_steps = request.reuse, request.num_steps
    num_records = num_kept(reuse, step, num_steps=num_steps) if reuse else 0
    if reuse is None or num_records == 0:
        return None
    plan = refreshed(reuse, step, num_steps=num_steps)
    bare = family.state_bytes(height=request.height, width=request.width, num_frames=request.num_frames)
    whole = bare + num_records * sizes_of(family, request).record_bytes
    pairs = [each.pair for each in transfers]
    moves_s = (costs.migration_s(whole, pair) - costs.migration_s(bare, pair) for pair in pairs)
    num_more = len(plan.computed) - len(reuse.computed)
    return plan if max(moves_s, default=0.0) > num_more * step_s else None
