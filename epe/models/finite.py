"""NaN and Inf end a request as non-finite: they never become a black picture."""

from __future__ import annotations

import torch

from epe.errors import NonFinite
from epe.messages import Stage
from epe.models.contract import State


def check_finite(*states: State) -> None:
    """Raises `NonFinite` for the first tensor of the states that holds NaN or Inf.

    It waits for the device, once for all: once a lease is enough.
    """
    named = [(state, name, tensor) for state in states for name, tensor in state.tensors.items()]
    are_finite = torch.stack([torch.isfinite(tensor).all() for *_, tensor in named])
    for (state, name, _), is_finite in zip(named, are_finite.tolist(), strict=True):
        if not is_finite:
            raise _non_finite(name, stage=Stage.DENOISE if state.step else Stage.ENCODE, step=state.step)


def require_finite(tensor: torch.Tensor, *, name: str, stage: Stage) -> None:
    """Raises `NonFinite` with the stage after which `tensor` was found to hold NaN or Inf.

    It waits for the device: ask when all other work has been given to it.
    """
    if not torch.isfinite(tensor).all():
        raise _non_finite(name, stage=stage)


def _non_finite(name: str, *, stage: Stage, step: int | None = None) -> NonFinite:
    where = f" before step {step}" if step else ""
    return NonFinite(f"non-finite values in {name} after {stage}{where}", stage=stage, step=step)
