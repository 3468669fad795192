"""Draws whole trajectories of a model and makes its FlexCache profile of them; `epe cache fit` runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch

from epe.cache import Profile
from epe.cache.fitting import Probe, Trajectory, fit
from epe.messages import Request, Split
from epe.models.contract import LATENTS, BatchAdapter, State
from epe.models.reusing import Denoiser
from epe.transport.exchange import SoloExchange

# Stretches of which it is tried how much of their errors is left at the end; between their ends straight lines lead.
MAX_PROBED = 16
# Requests that are tried so, if nothing else is asked for.
NUM_PROBED = 4

Tell = Callable[[str], None]


@runtime_checkable
class Drawer(BatchAdapter, Denoiser, Protocol):
    """A model whose steps are made of velocities, as those of all families here are."""


def fit_profile(
    adapter: Drawer,
    requests: Sequence[Request],
    *,
    model: str,
    source: str,
    num_probed: int = NUM_PROBED,
    batch: int = 1,
    tell: Tell = lambda line: None,
) -> Profile:
    """The profile of a model from requests of one size and number of steps, `batch` of which are drawn at once; the
    first `num_probed` are drawn from later steps on too, with an error, to find out how much of it stays."""
    trajectories: list[Trajectory] = []
    probes: list[Probe] = []
    for start in range(0, len(requests), batch):
        ways = _drawn(adapter, requests[start : start + batch])
        trajectories += [_trajectory(way) for way in ways]
        tell(f"drew {len(trajectories)} of {len(requests)} whole trajectories")
        if start < num_probed:
            probes += _probed(adapter, ways[: num_probed - start], tell)
    sigmas = adapter.sigmas(requests[0])
    return fit(trajectories, probes, sigmas=sigmas, model=model, family=adapter.family.name, source=source)


@dataclass(frozen=True, slots=True)
class _Way:
    """A request before each step and after the last, and the velocity of each."""

    states: list[State]
    velocities: list[torch.Tensor]


def _drawn(adapter: Drawer, requests: Sequence[Request]) -> list[_Way]:
    """A batch, every step of it computed."""
    ways = [_Way([adapter.encode(request)], []) for request in requests]
    while ways[0].states[-1].step < requests[0].num_steps:
        states = [way.states[-1] for way in ways]
        made = adapter.velocities(states, SoloExchange(), Split())
        for way, state, velocity in zip(ways, states, made, strict=True):
            way.velocities.append(velocity)
            way.states.append(adapter.advanced(state, velocity))
    return ways


def _probed(adapter: Drawer, ways: Sequence[_Way], tell: Tell) -> Iterator[Probe]:
    """What becomes of the errors of stretches that go on with the velocity before them, as gaps do. They are as long as
    `MAX_PROBED` of them make the way, for what 16 bits round away would hide the error of one short step."""
    num_steps = len(ways[0].velocities)
    count = min(MAX_PROBED, num_steps - 1)
    starts = [1 + place * (num_steps - 1) // count for place in range(count + 1)]
    for start, end in pairwise(starts[:-1]):
        wrong = [way.states[start] for way in ways]
        while wrong[0].step < end:
            held = [way.velocities[start - 1] for way in ways]
            wrong = [adapter.advanced(*each) for each in zip(wrong, held, strict=True)]
        errors = [_distance(state, way.states[end]) for state, way in zip(wrong, ways, strict=True)]
        while wrong[0].step < num_steps:
            wrong = adapter.step_together(wrong, SoloExchange(), Split())
        left = [_distance(state, way.states[-1]) for state, way in zip(wrong, ways, strict=True)]
        tell(f"errors of {sum(errors):.4g} before step {end} of {num_steps} ended as {sum(left):.4g}")
        for error, at_end in zip(errors, left, strict=True):
            yield Probe(step=end, error=error, left=at_end)


def _distance(one: State, other: State) -> float:
    return float((one.tensors[LATENTS].float() - other.tensors[LATENTS].float()).norm())


def _trajectory(way: _Way) -> Trajectory:
    rows = torch.stack([velocity.float().flatten() for velocity in way.velocities]).double()
    return Trajectory(
        products=(rows @ rows.T).cpu().numpy(),
        latents_change=_changes([state.tensors[LATENTS] for state in way.states[:-1]]),
        velocity_change=_changes(way.velocities),
    )


def _changes(tensors: Sequence[torch.Tensor]) -> tuple[float, ...]:
    whole = [tensor.float() for tensor in tensors]
    return tuple(float((now - before).abs().mean() / before.abs().mean()) for before, now in pairwise(whole))
