"""Steps of flow matching whose guidance branches run each alone: the same for every family that has them so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Protocol

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from epe.messages import Request, Split
from epe.models.contract import State
from epe.models.schedule import at_step
from epe.parallel import predict_apart
from epe.transport.exchange import Exchange

LATENTS = "latents"
# The guidance branches; the second is there only with guidance that makes one.
BRANCHES = ("prompt_embeds", "negative_prompt_embeds")


class Predict(Protocol):
    """The velocities of one branch of one or several requests over the lane, in the shape of their latents. The branch
    has their prompt embeddings, (requests, text rows, text width), and the timesteps are one for each."""

    def __call__(
        self,
        branches: Sequence[torch.Tensor],
        exchange: Exchange,
        *,
        states: Sequence[State],
        timesteps: torch.Tensor,
    ) -> list[torch.Tensor]: ...


class Guide(Protocol):
    """One prediction of those of all branches."""

    def __call__(self, predictions: list[torch.Tensor], *, scale: float) -> torch.Tensor: ...


class StepsApart:
    """The steps of a family whose adapter brings `predict`, `guide` and `make_schedule`: a scheduler for a number of
    steps, a height and a width in pixels. Schedulers are kept; only copies of them take a step."""

    def __init__(
        self,
        *,
        make_schedule: Callable[..., FlowMatchEulerDiscreteScheduler],
        predict: Predict,
        guide: Guide,
    ) -> None:
        self._schedule = lru_cache(maxsize=64)(make_schedule)
        self._predict = predict
        self._guide = guide

    def step(self, state: State, exchange: Exchange, split: Split) -> State:
        """One denoising step over the lane of `exchange`; every rank of it returns the same state."""
        return self.step_together([state], exchange, split)[0]

    def step_together(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[State]:
        """One step of requests of equal size; those whose prompts have equally many rows are one batch."""
        batches: dict[tuple[torch.Size, ...], list[State]] = {}
        for state in states:
            batches.setdefault(tuple(tensor.shape for tensor in _branches(state)), []).append(state)
        done = {
            each.request.id: each for batch in batches.values() for each in self._step(batch, exchange, split)
        }
        return [done[state.request.id] for state in states]

    def _step(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[State]:
        schedulers = [at_step(self._schedule_of(state.request), state) for state in states]
        timesteps = [s.timesteps[state.step] for s, state in zip(schedulers, states, strict=True)]
        forward = partial(self._predict, states=states, timesteps=torch.stack(timesteps))
        branches = [torch.cat(same) for same in zip(*map(_branches, states), strict=True)]
        with torch.inference_mode():
            predictions = predict_apart(forward, branches, exchange=exchange, split=split)
        return [
            self._stepped(state, scheduler, [each[place : place + 1] for each in predictions])
            for place, (state, scheduler) in enumerate(zip(states, schedulers, strict=True))
        ]

    def _schedule_of(self, request: Request) -> FlowMatchEulerDiscreteScheduler:
        return self._schedule(num_steps=request.num_steps, height=request.height, width=request.width)

    def _stepped(
        self, state: State, scheduler: FlowMatchEulerDiscreteScheduler, predictions: list[torch.Tensor]
    ) -> State:
        with torch.inference_mode():
            velocity = self._guide(predictions, scale=state.request.guidance_scale)
        with torch.no_grad():
            (latents,) = scheduler.step(
                velocity, scheduler.timesteps[state.step], state.tensors[LATENTS], return_dict=False
            )
        return State(request=state.request, step=state.step + 1, tensors={**state.tensors, LATENTS: latents})


def latents_of(states: Sequence[State]) -> torch.Tensor:
    """(requests, picture rows, width)."""
    return torch.cat([state.tensors[LATENTS] for state in states])


def _branches(state: State) -> list[torch.Tensor]:
    return [state.tensors[name] for name in BRANCHES if name in state.tensors]
