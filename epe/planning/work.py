"""What is left of a trajectory, in seconds: the arithmetic that policies and forecasts share."""

from __future__ import annotations

from epe.messages import Split, Stage
from epe.planning.costs import CostKey, CostTable, Workload
from epe.planning.view import TrajectoryView


def cost_key(workload: Workload, stage: Stage, width: int) -> CostKey:
    """The key under which a task of this workload is measured (pixels know no guidance)."""
    conditions = workload.conditions if stage in (Stage.ENCODE, Stage.DENOISE) else 1
    return CostKey(
        stage=stage, tokens=workload.tokens, width=width, conditions=conditions, model=workload.model
    )


def step_s(costs: CostTable, workload: Workload, width: int) -> float:
    """Seconds of one denoising step."""
    return costs.seconds(cost_key(workload, Stage.DENOISE, width))


def remaining_s(costs: CostTable, trajectory: TrajectoryView, width: int) -> float:
    """Seconds until the decoded picture, when all steps that are left run at `width`."""
    seconds = costs.seconds(cost_key(trajectory.workload, Stage.DECODE, 1))
    if trajectory.stage is Stage.DECODE:
        return seconds
    steps_left = trajectory.num_steps - trajectory.step
    seconds += steps_left * step_s(costs, trajectory.workload, width)
    if trajectory.stage is Stage.ENCODE:
        seconds += costs.seconds(cost_key(trajectory.workload, Stage.ENCODE, 1))
    return seconds


def steps_for(
    costs: CostTable, trajectory: TrajectoryView, width: int, *, pulse_s: float, pulse_steps: int
) -> int:
    """Steps of the next lease: as many as fit into a pulse, at least `pulse_steps`, at most all that are left.

    While nothing was measured, `pulse_steps`: by a guess that is too low, a lease that nobody can end would hold
    all steps.
    """
    if trajectory.stage is not Stage.DENOISE:
        return 0
    key = cost_key(trajectory.workload, Stage.DENOISE, width)
    fitting = 0 if costs.guesses(key) else int(pulse_s / max(costs.seconds(key), 1e-9))
    return min(max(fitting, pulse_steps), trajectory.num_steps - trajectory.step)


def split_of(width: int, *, conditions: int, cfg_parallel_degree: int) -> Split:
    """How a lane divides a step: both guidance branches at once on the halves of an even lane, if the stage
    file splits guidance at all; else the whole lane works on the branches together."""
    if cfg_parallel_degree == 2 and conditions == 2 and width % 2 == 0:
        return Split(cfg=2, cp=width // 2)
    return Split(cfg=1, cp=width)
