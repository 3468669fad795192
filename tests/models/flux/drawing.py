"""Requests and references for the tests of FLUX.1 and FLUX.2-klein, which share their streams and their parity."""

from __future__ import annotations

from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline

from epe.messages import Request
from epe.models.catalog import load_adapter
from epe.models.contract import Adapter
from tests.models.trajectories import WIDTHS

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
                device=CPU,
                attention_mode=attention_mode,
                ulysses_degree=ulysses_degree,
            )
            for _ in range(max(WIDTHS))
        ]

    @cached_property
    def pipeline(self) -> Any:
        """Diffusers' own pipeline, never touched by us."""
        torch.set_num_threads(1)
        pipeline = DiffusionPipeline.from_pretrained(
            self.checkpoint, dtype=torch.float32, local_files_only=True
        )
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

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
        """The final latents, packed as the transformer has them, that diffusers' pipeline draws."""
        seen: list[torch.Tensor] = []

        def note(pipeline: Any, step: int, timestep: Any, tensors: dict[str, torch.Tensor]) -> Any:
            seen.append(tensors["latents"])
            return tensors

        self._call(request, output_type="latent", callback_on_step_end=note)
        return seen[-1]

    def picture(self, request: Request) -> np.ndarray:
        """(height, width, 3), as diffusers' pipeline draws it."""
        return np.asarray(self._call(request, output_type="pil")[0])

    def _call(self, request: Request, **options: Any) -> Any:
        return self.pipeline(
            prompt=request.prompt,
            height=request.height,
            width=request.width,
            num_inference_steps=request.num_steps,
            guidance_scale=request.guidance_scale,
            max_sequence_length=request.max_sequence_length,
            generator=torch.Generator("cpu").manual_seed(request.seed),
            **options,
        ).images
