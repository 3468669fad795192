"""Steps of flow matching whose guidance branches run each alone: the same for every family that has them so."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from epe.messages import Request, Split
from epe.models.contract import LATENTS, State
from epe.models.reusing import Steps
from epe.models.schedule import at_step, sigmas_of
from epe.parallel import Forward, SequenceSharding, predict_apart
from epe.transport.exchange import Exchange

# The guidance branches; the second is there only with guidance that makes one.
BRANCHES = ("prompt_embeds", "negative_prompt_embeds")


class Guide(Protocol):
    """One prediction of those of all branches."""

    def __call__(self, predictions: list[torch.Tensor], *, scale: float) -> torch.Tensor: ...


class FlowSteps(Steps):
    """Steps by Euler's method along a schedule of noise levels: one for a number of steps, a height and a width in
    pixels. Schedules are kept; only copies of them take a step."""

    _schedule: Callable[..., FlowMatchEulerDiscreteScheduler]

    def advanced(self, state: State, velocity: torch.Tensor) -> State:
        """The state after its step in this direction."""
        scheduler = at_step(self._schedule_of(state.request), state)
        with torch.no_grad():
            (latents,) = scheduler.step(
                velocity, scheduler.timesteps[state.step], state.tensors[LATENTS], return_dict=False
            )
        return State(request=state.request, step=state.step + 1, tensors={**state.tensors, LATENTS: latents})

    def sigmas(self, request: Request) -> tuple[float, ...]:
        """The noise levels before each step and after the last."""
        return sigmas_of(self._schedule_of(request))

    def _schedule_of(self, request: Request) -> FlowMatchEulerDiscreteScheduler:
        return self._schedule(num_steps=request.num_steps, height=request.height, width=request.width)


class StepsApart(FlowSteps):
    """Those of a family whose adapter brings `guide`, `make_schedule` and its passes."""

    sharding: SequenceSharding

    def __init__(
        self,
        *,
        make_schedule: Callable[..., FlowMatchEulerDiscreteScheduler],
        guide: Guide,
    ) -> None:
        self._schedule = lru_cache(maxsize=64)(make_schedule)
        self._guide = guide

    def velocities(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[torch.Tensor]:
        """Of requests of equal size; those whose prompts have equally many rows are one batch."""
        batches: dict[tuple[torch.Size, ...], list[State]] = {}
        for state in states:
            batches.setdefault(tuple(tensor.shape for tensor in _branches(state)), []).append(state)
        made = {
            state.request.id: velocity
            for batch in batches.values()
            for state, velocity in zip(batch, self._velocities(batch, exchange, split), strict=True)
        }
        return [made[state.request.id] for state in states]

    def _velocities(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[torch.Tensor]:
        timesteps = [at_step(self._schedule_of(s.request), s).timesteps[s.step] for s in states]
        branches = [torch.cat(same) for same in zip(*map(_branches, states), strict=True)]
        with torch.inference_mode():
            forward = self._passes(states, torch.stack(timesteps))
            predictions = predict_apart(forward, branches, exchange=exchange, split=split)
            return [
                self._guide(
                    [each[place : place + 1] for each in predictions], scale=state.request.guidance_scale
                )
                for place, state in enumerate(states)
            ]

    @abstractmethod
    def _passes(self, states: Sequence[State], timesteps: torch.Tensor) -> Forward[torch.Tensor]:
        """The passes of a step, whose timesteps are one for each request. A branch has prompt embeddings, (requests,
        text rows, text width), and gives velocities in the shape of the latents; what branches share is computed here.
        """


def latents_of(states: Sequence[State]) -> torch.Tensor:
    """(requests, picture rows, width)."""
    return torch.cat([state.tensors[LATENTS] for state in states])


def _branches(state: State) -> list[torch.Tensor]:
    return [state.tensors[name] for name in BRANCHES if name in state.tensors]
