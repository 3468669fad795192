"""One step of flow matching whose guidance branches run each alone: the same for every family that has them so."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from epe.messages import Split
from epe.models.contract import State
from epe.parallel import predict_apart
from epe.transport.exchange import Exchange

LATENTS = "latents"
# The guidance branches; the second is there only with guidance that makes one.
BRANCHES = ("prompt_embeds", "negative_prompt_embeds")


class Predict(Protocol):
    """The velocity for one branch (its prompt embeddings) over the lane, in the shape of the latents."""

    def __call__(
        self, branches: Sequence[torch.Tensor], exchange: Exchange, *, state: State, timestep: torch.Tensor
    ) -> list[torch.Tensor]: ...


class Guide(Protocol):
    """One prediction of those of all branches."""

    def __call__(self, predictions: list[torch.Tensor], *, scale: float) -> torch.Tensor: ...


def step_apart(
    state: State,
    exchange: Exchange,
    split: Split,
    *,
    scheduler: FlowMatchEulerDiscreteScheduler,
    predict: Predict,
    guide: Guide,
) -> State:
    """The state after one step over the lane of `exchange`; every rank of it returns the same state."""
    timestep = scheduler.timesteps[state.step]
    forward = partial(predict, state=state, timestep=timestep)
    branches = [state.tensors[name] for name in BRANCHES if name in state.tensors]
    with torch.inference_mode():
        predictions = predict_apart(forward, branches, exchange=exchange, split=split)
        velocity = guide(predictions, scale=state.request.guidance_scale)
    with torch.no_grad():
        (latents,) = scheduler.step(velocity, timestep, state.tensors[LATENTS], return_dict=False)
    return State(request=state.request, step=state.step + 1, tensors={**state.tensors, LATENTS: latents})
