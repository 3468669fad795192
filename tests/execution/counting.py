"""A model that counts: the state is one number a step adds to, so that every move shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from epe.families import family
from epe.messages import Lane, Lease, Request, Split, Stage, StateHeader
from epe.models.contract import State
from epe.transport.exchange import Exchange

Hook = Callable[[State], None]


def request(name: str = "a", *, steps: int = 4) -> Request:
    return Request(id=name, prompt="p", height=64, width=64, num_steps=steps, guidance_scale=1.0, seed=0)


def lease(seq: int, stage: Stage, *, first_step: int = 0, num_steps: int = 0, name: str = "a") -> Lease:
    return Lease(
        seq=seq,
        epoch=0,
        lane=Lane(ranks=(0,)),
        stage=stage,
        request=request(name),
        first_step=first_step,
        num_steps=num_steps,
    )


class CountingAdapter:
    """Implements `BatchAdapter`. `before_step` may raise or change nothing; `batches` says who stepped together."""

    family = family("zimage")
    pipeline = None

    def __init__(self, before_step: Hook = lambda state: None) -> None:
        self.before_step = before_step
        self.batches: list[tuple[str, ...]] = []

    def encode(self, request: Request) -> State:
        return State(request=request, step=0, tensors={"latents": torch.zeros(2)})

    def step(self, state: State, exchange: Exchange, split: Split) -> State:
        self.before_step(state)
        latents = state.tensors["latents"] + 1
        return State(request=state.request, step=state.step + 1, tensors={"latents": latents})

    def step_together(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[State]:
        self.batches.append(tuple(state.request.id for state in states))
        return [self.step(state, exchange, split) for state in states]

    def decode(self, state: State, exchange: Exchange | None = None) -> torch.Tensor | None:
        return torch.full((1, 2, 2, 3), int(state.tensors["latents"][0]), dtype=torch.uint8)

    def export_state(self, state: State) -> tuple[StateHeader, tuple[torch.Tensor, ...]]:
        header = StateHeader(request_id=state.request.id, step=state.step, names=tuple(state.tensors))
        return header, tuple(state.tensors.values())

    def import_state(self, request: Request, header: StateHeader, tensors: tuple) -> State:
        return State(request=request, step=header.step, tensors=dict(zip(header.names, tensors, strict=True)))
