"""Draws whole trajectories of a model and makes its FlexCache profile of them; `epe cache fit` runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from msgspec.structs import replace

from epe.cache import CacheRules, Profile, resolve
from epe.cache.fitting import Trajectory, fit
from epe.messages import FreeCache, Request, Reuse, Split
from epe.models.contract import LATENTS, BatchAdapter, State
from epe.models.reusing import Denoiser
from epe.transport.exchange import SoloExchange

# How errors of different steps may add up; which of it holds for a model is found by drawing.
RHOS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Budgets at which that is tried, in parts of the steps.
TRIED = (0.5, 0.3)

Tell = Callable[[str], None]


@runtime_checkable
class Drawer(BatchAdapter, Denoiser, Protocol):
    """A model whose steps are made of velocities, as those of all families here are."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A request before its first step, and the latents that it ends with when every step is computed."""

    begun: State
    end: torch.Tensor


def fit_profile(
    adapter: Drawer,
    requests: Sequence[Request],
    *,
    model: str,
    source: str,
    num_tried: int = 4,
    batch: int = 1,
    tell: Tell = lambda line: None,
) -> Profile:
    """The profile of a model from requests of one size and number of steps, `batch` of which are drawn at once; the
    first `num_tried` are drawn with FreeCache too, to find out how errors add up."""
    trajectories: list[Trajectory] = []
    drawn: list[Drawn] = []
    for start in range(0, len(requests), batch):
        for trajectory, whole in _measured(adapter, requests[start : start + batch]):
            trajectories.append(trajectory)
            drawn.append(whole)
        tell(f"drew {len(drawn)} of {len(requests)} whole trajectories")
    sigmas = adapter.sigmas(requests[0])
    profile = fit(trajectories, sigmas=sigmas, model=model, family=adapter.family.name, source=source)
    tried = drawn[:num_tried]
    groups = [tried[start : start + batch] for start in range(0, len(tried), batch)]
    return min(
        (replace(profile, rho=rho) for rho in RHOS),
        key=lambda each: _told(_error(adapter, each, groups), each, tell),
    )


def _told(error: float, profile: Profile, tell: Tell) -> float:
    tell(f"rho {profile.rho:g}: latents end {error:.4g} of their size away")
    return error


def _measured(adapter: Drawer, requests: Sequence[Request]) -> Iterator[tuple[Trajectory, Drawn]]:
    """What was measured of each of a batch, and what was drawn."""
    states = begun = [adapter.encode(request) for request in requests]
    velocities: list[list[torch.Tensor]] = [[] for _ in states]
    latents: list[list[torch.Tensor]] = [[] for _ in states]
    while states[0].step < states[0].request.num_steps:
        made = adapter.velocities(states, SoloExchange(), Split())
        for place, (state, velocity) in enumerate(zip(states, made, strict=True)):
            velocities[place].append(velocity.float().flatten())
            latents[place].append(state.tensors[LATENTS].float().flatten())
        states = [adapter.advanced(*each) for each in zip(states, made, strict=True)]
    for place, state in enumerate(states):
        whole = Drawn(begun[place], state.tensors[LATENTS])
        yield _trajectory(velocities[place], latents[place]), whole


def _trajectory(velocities: list[torch.Tensor], latents: list[torch.Tensor]) -> Trajectory:
    rows = torch.stack(velocities).double()
    return Trajectory(
        products=(rows @ rows.T).cpu().numpy(),
        latents_change=_changes(latents),
        velocity_change=_changes(velocities),
    )


def _changes(tensors: list[torch.Tensor]) -> tuple[float, ...]:
    return tuple(
        float((now - before).abs().mean() / before.abs().mean()) for before, now in pairwise(tensors)
    )


def _error(adapter: Drawer, profile: Profile, groups: Sequence[Sequence[Drawn]]) -> float:
    """How far the latents end from those without FlexCache, in parts of their size, in the mean."""
    errors = []
    for group in groups:
        num_steps = group[0].begun.request.num_steps
        for part in TRIED:
            budget = FreeCache(fresh_budget=max(2, round(part * num_steps)), few_steps=True)
            reuse = resolve(budget, CacheRules(profile=profile), num_steps=num_steps)
            ends = _ends(adapter, [each.begun for each in group], reuse)
            errors += [
                float((end.float() - each.end.float()).norm() / each.end.float().norm())
                for end, each in zip(ends, group, strict=True)
            ]
    return sum(errors) / len(errors)


def _ends(adapter: Drawer, begun: Sequence[State], reuse: Reuse | None) -> list[torch.Tensor]:
    states = [State(replace(each.request, reuse=reuse), 0, each.tensors) for each in begun]
    while states[0].step < states[0].request.num_steps:
        states = adapter.step_together(states, SoloExchange(), Split())
    return [state.tensors[LATENTS] for state in states]
