"""Requests and references for the tests of FLUX.1 and FLUX.2-klein, which share their streams and their parity."""

from __future__ import annotations

from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from epe.messages import Request
from epe.models.catalog import load_adapter
from epe.models.contract import Adapter
from epe.models.loading import Loading
from tests.models.trajectories import WIDTHS
from tests.oracle import latents_of, load_oracle, pixels_of

FAMILIES = ("flux1", "flux2-klein")
CPU = torch.device("cpu")
PROMPT = "a cat on a red chair"
# Picture rows: 16, 256, 323 (17 x 19) and 1024.
SIZES = ((64, 64), (256, 256), (272, 304), (512, 512))


class Subject:
    """One family with a tiny checkpoint."""

    def __init__(self, name: str, checkpoint: Path) -> None:
        self.name = name
        self.checkpoint = checkpoint
        self.adapters = lru_cache(self._adapters)

    @property
    def adapter(self) -> Adapter:
        return self.adapters("agkv")[0]

    def _adapters(self, attention_mode: str, ulysses_degree: int | None = None) -> list[Adapter]:
        """One adapter a rank."""
        return [
            load_adapter(
                self.name,
                self.checkpoint,
                Loading(device=CPU, attention_mode=attention_mode, ulysses_degree=ulysses_degree),
            )
            for _ in range(max(WIDTHS))
        ]

    @cached_property
    def pipeline(self) -> Any:
        """Diffusers' own pipeline, never touched by us."""
        return load_oracle(self.checkpoint)

    def request(self, **changes: Any) -> Request:
        """Guided in the family's own way."""
        fields: dict[str, Any] = {
            "id": "r",
            "prompt": PROMPT,
            "height": 272,
            "width": 304,
            "num_steps": 3,
            "guidance_scale": 3.5,
            "seed": 11,
            "max_sequence_length": 150,
        }
        return Request(**(fields | changes))

    def latents(self, request: Request) -> torch.Tensor:
        """The final latents that diffusers' pipeline draws."""
        return latents_of(self.pipeline, request)

    def picture(self, request: Request) -> np.ndarray:
        """(1, height, width, 3), as diffusers' pipeline draws it."""
        return pixels_of(self.pipeline, request)
