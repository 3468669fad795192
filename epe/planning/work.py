"""What is left of a trajectory, in seconds: the arithmetic that policies and forecasts share."""

from __future__ import annotations

from msgspec.structs import replace

from epe.messages import Split, Stage
from epe.planning.costs import Basis, CostKey, CostTable, Workload
from epe.planning.view import TrajectoryView


def cost_key(workload: Workload, stage: Stage, width: int, *, batch: int = 1) -> CostKey:
    """The key under which a task of this workload is measured (pixels know no guidance)."""
    conditions = workload.conditions if stage in (Stage.ENCODE, Stage.DENOISE) else 1
    return CostKey(
        stage=stage,
        tokens=workload.tokens,
        width=width,
        batch=batch,
        conditions=conditions,
        model=workload.model,
    )


def shared_width(stage: Stage, num_ranks: int) -> int:
    """The width under which a lease of so many ranks is accounted for: each rank that encodes does the whole."""
    return 1 if stage is Stage.ENCODE else num_ranks


# Best first.
_BASES = tuple(Basis)


def basis_of(costs: CostTable, workload: Workload, widths: tuple[int, ...]) -> Basis:
    """What times of this workload rest on: the weakest basis of its tasks, at any width that it may have."""
    steps = workload.widths(widths, limit=max(widths))
    tasks = [(Stage.ENCODE, 1), (Stage.DECODE, 1), *((Stage.DENOISE, width) for width in steps)]
    return max((costs.fit(cost_key(workload, *task)).basis for task in tasks), key=_BASES.index)


def with_barred(costs: CostTable, workload: Workload, widths: tuple[int, ...]) -> Workload:
    """The workload with the widths at which its steps do not fit into a rank's memory barred too; none of them where no
    width is left."""
    possible = workload.widths(widths, limit=max(widths))
    barred = tuple(width for width in possible if not _steps_fit(costs, workload, width))
    if not 0 < len(barred) < len(possible):
        return workload
    return replace(workload, barred=tuple(sorted({*workload.barred, *barred})))


def too_large(costs: CostTable, workload: Workload, widths: tuple[int, ...]) -> str | None:
    """Why no lane has the memory for a workload, in one sentence, or None."""
    for stage in (Stage.ENCODE, Stage.DECODE):
        key = cost_key(workload, stage, 1)
        if not costs.fits(key):
            return f"{_lacking(costs, key)}; ask for a smaller size"
    steps = [width for width in widths if width <= workload.max_width] or [1]
    if any(_steps_fit(costs, workload, width) for width in steps):
        return None
    lent_bytes = _lent_bytes(workload, steps[-1])
    way_out = "a smaller size, or for less reuse of attention" if lent_bytes else "a smaller size"
    key = cost_key(workload, Stage.DENOISE, steps[-1])
    return f"{_lacking(costs, key, beside_bytes=lent_bytes)}; ask for {way_out}"


def _steps_fit(costs: CostTable, workload: Workload, width: int) -> bool:
    key = cost_key(workload, Stage.DENOISE, width)
    return costs.fits(key, beside_bytes=_lent_bytes(workload, width))


def _lent_bytes(workload: Workload, width: int) -> int:
    """What a rank of such a lane keeps between the steps of a lease."""
    return -(-workload.lent_bytes // width)


def _lacking(costs: CostTable, key: CostKey, *, beside_bytes: int = 0) -> str:
    memory = costs.memory
    needed_bytes = (memory.predicted_bytes(key) or memory.resident_bytes) + beside_bytes
    needed, limit = needed_bytes / 2**30, (memory.limit_bytes or 0) / 2**30
    return f"stage {key.stage} would need {needed:.3g} GiB on a rank, which has {limit:.3g}"


def step_s(costs: CostTable, workload: Workload, width: int) -> float:
    """Seconds of one denoising step."""
    return costs.seconds(cost_key(workload, Stage.DENOISE, width))


def left_s(costs: CostTable, workload: Workload, stage: Stage, num_steps: int, *, width: int) -> float:
    """Seconds until the decoded picture from a stage on, when all `num_steps` that are left run at `width`."""
    seconds = costs.seconds(cost_key(workload, Stage.DECODE, 1))
    if stage is Stage.DECODE:
        return seconds
    seconds += num_steps * step_s(costs, workload, width)
    if stage is Stage.ENCODE:
        seconds += costs.seconds(cost_key(workload, Stage.ENCODE, 1))
    return seconds


def steps_for(
    costs: CostTable, trajectory: TrajectoryView, width: int, *, pulse_s: float, pulse_steps: int
) -> int:
    """Steps of the next lease: as many as fit into a pulse, at least `pulse_steps`, at most all that are left. Those
    that FlexCache makes without the model count nothing.

    While nothing was measured, `pulse_steps`: by a guess that is too low, a lease that nobody can end would hold
    all steps.
    """
    if trajectory.stage is not Stage.DENOISE:
        return 0
    key = cost_key(trajectory.workload, Stage.DENOISE, width)
    fitting = 0 if costs.guesses(key) else int(pulse_s / max(costs.seconds(key), 1e-9))
    return trajectory.steps_with(max(fitting, pulse_steps))


def split_of(width: int, *, conditions: int, cfg_parallel_degree: int, num_planes: int = 1) -> Split:
    """How a lane of `width` ranks in each plane divides a step: both guidance branches at once on the halves of an
    even lane, if the stage file splits guidance at all; else the whole lane works on the branches together."""
    if cfg_parallel_degree == 2 and conditions == 2 and width % 2 == 0:
        return Split(cfg=2, cp=width // 2, tp=num_planes)
    return Split(cfg=1, cp=width, tp=num_planes)
