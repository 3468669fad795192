"""How a rank wants a model loaded: what the adapters of all families are loaded with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from epe.graphs import Graphs
from epe.parallel import ONE_PLANE, Plane, TeamLimits, team_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Onto which device, in which type (None: bfloat16 on CUDA, float32 elsewhere), and how lanes will share it.

    `graphs` capture its forward passes. `compiled` blocks and decoders have other last bits. Encoded prompts are kept
    up to `prompt_bytes`. A family without a second form for the axis `cfg` works alike with either
    `cfg_parallel_degree`.
    """

    device: torch.device
    dtype: torch.dtype | None = None
    cfg_parallel_degree: int = 1
    attention_mode: str = "agkv"
    ulysses_degree: int | None = None
    plane: Plane = ONE_PLANE
    graphs: Graphs | None = None
    prompt_bytes: int = 0
    compiled: bool = False

    @property
    def weights_dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.dtype or (torch.bfloat16 if self.device.type == "cuda" else torch.float32)

    @property
    def team_limits(self) -> TeamLimits:
        """How many ranks may share heads. Raises `ValueError` for a mode that has no such degree."""
        return team_limits(self.attention_mode, self.ulysses_degree)
