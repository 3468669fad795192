"""UniPC, a scheduler with a history (Zhao et al., 2023): resumed from a canonical state, and put back into one.

The next step is made from the last predictions and the last sample; without them it would go on with other
bits, or fail. They are as large as the latents and belong to the state.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from diffusers import UniPCMultistepScheduler
from torch.overrides import TorchFunctionMode

from epe.models.contract import State
from epe.models.schedule import sent

_LAST_SAMPLE = "last_sample"
_COUNTERS = ("lower_order_nums", "this_order")


def make_schedule(
    scheduler: UniPCMultistepScheduler, *, num_steps: int, flow_shift: float | None, device: torch.device
) -> UniPCMultistepScheduler:
    """A scheduler set for `num_steps`, without a history; only copies of it (`resume`) take a step. Without a
    `flow_shift` it has that of `scheduler`."""
    changes = {} if flow_shift is None else {"flow_shift": flow_shift}
    schedule = type(scheduler).from_config(scheduler.config, **changes)
    schedule.set_timesteps(num_steps)
    # Diffusers keeps the sigmas on the host, and each step sends its own to the device, for which the host waits.
    return sent(schedule, device)


class Unchecked(TorchFunctionMode):
    """Within it systems of equations are solved without asking the device whether they could be, for which the host
    would wait. Those of UniPC can: no two of its sigmas are equal."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.linalg.solve:
            return torch.linalg.solve_ex(*args, **(kwargs or {})).result
        return func(*args, **(kwargs or {}))


def resume(schedule: UniPCMultistepScheduler, state: State) -> UniPCMultistepScheduler:
    """A scheduler for one step from the boundary of `state`, sharing nothing that changes with any other."""
    scheduler = copy.copy(schedule)
    scheduler.set_begin_index(state.step)
    order = scheduler.config.solver_order
    scheduler.model_outputs = [state.tensors.get(_output(place)) for place in range(order)]
    # Read by an external predictor alone, which the pipelines do not use.
    scheduler.timestep_list = [None] * order
    scheduler.last_sample = state.tensors.get(_LAST_SAMPLE)
    for counter in _COUNTERS:
        if counter in state.scalars:
            setattr(scheduler, counter, int(state.scalars[counter]))
    return scheduler


def history_tensors(scheduler: UniPCMultistepScheduler) -> dict[str, torch.Tensor]:
    """What the scheduler keeps after a step: the predictions that there are, oldest first, and the sample."""
    outputs = enumerate(scheduler.model_outputs)
    kept = {_output(place): output for place, output in outputs if output is not None}
    return {**kept, _LAST_SAMPLE: scheduler.last_sample}


def history_scalars(scheduler: UniPCMultistepScheduler) -> dict[str, float]:
    """What the scheduler counts: the order of its last step, and how high the next one may go."""
    return {counter: getattr(scheduler, counter) for counter in _COUNTERS}


def _output(place: int) -> str:
    return f"model_output_{place}"
