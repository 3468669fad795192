"""Flow-matching schedules: made once for a request's numbers, and never changed by a step of any request."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from epe.models.contract import State

Schedule = TypeVar("Schedule", FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler)


def linear_schedule(
    template: FlowMatchEulerDiscreteScheduler, *, num_steps: int, mu: float, device: torch.device
) -> FlowMatchEulerDiscreteScheduler:
    """A scheduler like `template` over sigmas from 1 to 1/`num_steps`, shifted by `mu` where it shifts by size."""
    scheduler = type(template).from_config(template.config)
    own_sigmas = scheduler.config.get("use_flow_sigmas", False)
    sigmas = None if own_sigmas else np.linspace(1.0, 1 / num_steps, num_steps)
    scheduler.set_timesteps(num_steps if own_sigmas else None, sigmas=sigmas, mu=mu)
    return sent(scheduler, device)


def dynamic_schedule(
    template: FlowMatchEulerDiscreteScheduler,
    *,
    num_steps: int,
    height: int,
    width: int,
    num_tokens: Callable[..., int],
    device: torch.device,
) -> FlowMatchEulerDiscreteScheduler:
    """A linear schedule that shifts by the number of picture tokens, between the limits of `template`; `num_tokens`
    counts them from the height and the width."""
    mu = calculate_shift(
        num_tokens(height=height, width=width),
        template.config.get("base_image_seq_len", 256),
        template.config.get("max_image_seq_len", 4096),
        template.config.get("base_shift", 0.5),
        template.config.get("max_shift", 1.15),
    )
    return linear_schedule(template, num_steps=num_steps, mu=mu, device=device)


def sent(schedule: Schedule, device: torch.device) -> Schedule:
    """A schedule that was made on the host, with its numbers on the device, where each step reads them. The host knows
    its noise levels on: to ask the device for them it would have to wait for all earlier work."""
    schedule.levels = tuple(schedule.sigmas.tolist())
    schedule.sigmas, schedule.timesteps = schedule.sigmas.to(device), schedule.timesteps.to(device)
    return schedule


def sigmas_of(schedule: FlowMatchEulerDiscreteScheduler | UniPCMultistepScheduler) -> tuple[float, ...]:
    """The noise levels before each step and after the last, of one that was `sent`."""
    levels: tuple[float, ...] = schedule.levels
    return levels


def at_step(schedule: FlowMatchEulerDiscreteScheduler, state: State) -> FlowMatchEulerDiscreteScheduler:
    """A scheduler for the next step of `state` alone: its index is state that requests must not share.

    Raises `ValueError` when all steps are done.
    """
    if state.step >= state.request.num_steps:
        raise ValueError(f"request {state.request.id} has only {state.request.num_steps} steps")
    scheduler = copy.copy(schedule)
    scheduler.set_begin_index(state.step)
    return scheduler
