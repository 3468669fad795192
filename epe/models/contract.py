"""What a model family brings: its tasks, and how its state leaves and enters a rank.

Everything else (leases, lanes, planning, serving) is the same for all families.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from epe.families import Family
from epe.messages import Request, Split, StateHeader
from epe.parallel import Broadcast
from epe.transport.exchange import Exchange

# What every family calls the picture or video that is being drawn, in its state.
LATENTS = "latents"


@dataclass(frozen=True, slots=True)
class State:
    """The canonical state of a request at the boundary before `step`: what denoising resumes from exactly.

    `tensors` are never changed in place: a step makes a new state, so a state that another rank
    is fetching stays whole. `scalars` are what a scheduler with a history counts beside them. `lent` is what steps of
    one lease hand on and nobody else gets: a state that is kept or moves has none.
    """

    request: Request
    step: int
    tensors: dict[str, torch.Tensor]
    scalars: dict[str, float] = field(default_factory=dict)
    lent: Broadcast | None = field(default=None, compare=False)


class Adapter(Protocol):
    """One model family on one rank's device. Called from the device thread alone, except `export_state`. `pipeline`
    is diffusers' own, whose `transformer` takes the steps."""

    family: Family
    pipeline: Any

    def encode(self, request: Request) -> State:
        """Prompt embeddings and the first latents. Raises `BadRequest` for a prompt that is too long."""

    def step(self, state: State, exchange: Exchange, split: Split) -> State:
        """One denoising step over the lane of `exchange`; every rank of it returns the same state."""

    def decode(self, state: State, exchange: Exchange | None = None) -> torch.Tensor | None:
        """Pixels of the finished latents: uint8, (frames, height, width, 3), on the device. With an `exchange` the
        ranks of its lane decode together, and all but the first get None."""

    def export_state(self, state: State) -> tuple[StateHeader, tuple[torch.Tensor, ...]]:
        """The state as named tensors in host memory: what goes to other ranks, and what the leader keeps."""

    def import_state(self, request: Request, header: StateHeader, tensors: tuple[torch.Tensor, ...]) -> State:
        """The state on this rank's device, with the bits that were exported."""


@runtime_checkable
class BatchAdapter(Adapter, Protocol):
    """A family that draws several requests as one batch, where its table of families says so."""

    def step_together(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[State]:
        """One denoising step of requests of one size and one number of guidance branches; their steps, schedules,
        prompts and scales may differ. With one state alone, the bits of `step`."""
