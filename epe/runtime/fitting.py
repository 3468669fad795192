"""Draws whole trajectories of a model and makes its FlexCache profile of them; `epe cache fit` runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from msgspec.structs import replace

from epe.cache import CacheRules, Profile, resolve
from epe.cache.fitting import Trajectory, fit
from epe.messages import FreeCache, Request, Split
from epe.models.contract import LATENTS, Adapter, State
from epe.models.reusing import Denoiser
from epe.transport.exchange import SoloExchange

# How errors of different steps may add up; which of it holds for a model is found by drawing.
RHOS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Budgets at which that is tried, in parts of the steps.
TRIED = (0.5, 0.3)

Tell = Callable[[str], None]


@runtime_checkable
class Drawer(Adapter, Denoiser, Protocol):
    """A model whose steps are made of velocities, as those of all families here are."""


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
    """The profile of a model from requests of one size and number of steps; the first `num_tried` are drawn with
    FreeCache too, to find out how errors add up."""
    trajectories, ends = [], []
    for number, (trajectory, end) in enumerate(_measured(adapter, requests, batch=batch), start=1):
        trajectories.append(trajectory)
        ends.append(end)
        tell(f"drew {number} of {len(requests)} whole trajectories")
    sigmas = adapter.sigmas(requests[0])
    profile = fit(trajectories, sigmas=sigmas, model=model, family=adapter.family.name, source=source)
    tried = list(zip(requests[:num_tried], ends, strict=False))
    return min(
        (replace(profile, rho=rho) for rho in RHOS),
        key=lambda each: _told(_error(adapter, each, tried), each, tell),
    )


def _told(error: float, profile: Profile, tell: Tell) -> float:
    tell(f"rho {profile.rho:g}: latents end {error:.4g} of their size away")
    return error


def _measured(
    adapter: Drawer, requests: Sequence[Request], *, batch: int
) -> Iterator[tuple[Trajectory, torch.Tensor]]:
    """What was measured of each request, and its last latents."""
    for start in range(0, len(requests), batch):
        states = [adapter.encode(request) for request in requests[start : start + batch]]
        velocities: list[list[torch.Tensor]] = [[] for _ in states]
        latents: list[list[torch.Tensor]] = [[] for _ in states]
        while states[0].step < states[0].request.num_steps:
            made = adapter.velocities(states, SoloExchange(), Split())
            for place, (state, velocity) in enumerate(zip(states, made, strict=True)):
                velocities[place].append(velocity.float().flatten())
                latents[place].append(state.tensors[LATENTS].float().flatten())
            states = [adapter.advanced(*each) for each in zip(states, made, strict=True)]
        for place, state in enumerate(states):
            yield _trajectory(velocities[place], latents[place]), state.tensors[LATENTS]


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


def _error(adapter: Drawer, profile: Profile, tried: Sequence[tuple[Request, torch.Tensor]]) -> float:
    """How far the latents end from those without FlexCache, in parts of their size, in the mean."""
    errors = []
    for request, end in tried:
        for part in TRIED:
            budget = FreeCache(fresh_budget=max(2, round(part * request.num_steps)), few_steps=True)
            reuse = resolve(budget, CacheRules(profile=profile), num_steps=request.num_steps)
            latents = drawn(adapter, replace(request, reuse=reuse)).tensors[LATENTS]
            errors.append(float((latents.float() - end.float()).norm() / end.float().norm()))
    return sum(errors) / len(errors)


def drawn(adapter: Adapter, request: Request) -> State:
    """The finished state on a lane of one."""
    state = adapter.encode(request)
    while state.step < request.num_steps:
        state = adapter.step(state, SoloExchange(), Split())
    return state
