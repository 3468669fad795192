"""NaN and Inf end a request as non-finite: they never become a black picture."""

from __future__ import annotations

import torch

from epe.errors import NonFinite
from epe.messages import Stage
from epe.models.contract import State


def check_finite(state: State) -> None:
    """Raises `NonFinite` when a tensor of the state holds NaN or Inf.

    It waits for the device: once a lease is enough.
    """
    stage = Stage.DENOISE if state.step else Stage.ENCODE
    for name, tensor in state.tensors.items():
        require_finite(tensor, name=name, stage=stage, step=state.step)


def require_finite(tensor: torch.Tensor, *, name: str, stage: Stage, step: int | None = None) -> None:
    """Raises `NonFinite` with the stage (and step) at which `tensor` was found to hold NaN or Inf."""
    if not torch.isfinite(tensor).all():
        where = f" before step {step}" if step else ""
        raise NonFinite(f"non-finite values in {name} after {stage}{where}", stage=stage, step=step)
