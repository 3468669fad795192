"""Diffusers' own pipelines as the oracle of every family: what they draw for a request, never touched by us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline

from epe.families import FAMILIES, Family
from epe.messages import Request
from epe.models.checkpoint import quiet_progress

_FAMILIES = {family.pipeline: family for family in FAMILIES.values()}

# Hears of every step that is done.
Watcher = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The final latents, as the transformer has them, and uint8 pixels (frames, height, width, 3) if wanted."""

    latents: torch.Tensor
    pixels: np.ndarray | None = None


def load_oracle(checkpoint: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """The pipeline of a checkpoint folder; the VAE of videos keeps to float32, as diffusers' examples have it."""
    torch.set_num_threads(1)
    index = DiffusionPipeline.load_config(checkpoint)
    dtypes = {"default": dtype, "vae": torch.float32} if index["_class_name"] == "WanPipeline" else dtype
    with quiet_progress():
        pipeline = DiffusionPipeline.from_pretrained(checkpoint, dtype=dtypes, local_files_only=True)
    pipeline = pipeline.to(device)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def latents_of(pipeline: Any, request: Request) -> torch.Tensor:
    """The final latents that the pipeline draws for a request, as the transformer has them."""
    return draw(pipeline, request).latents


def pixels_of(pipeline: Any, request: Request) -> np.ndarray:
    """The picture or video that the pipeline draws for a request: uint8, (frames, height, width, 3)."""
    pixels = draw(pipeline, request, pixels=True).pixels
    assert pixels is not None
    return pixels


def draw(pipeline: Any, request: Request, *, pixels: bool = False, watcher: Watcher = lambda: None) -> Drawn:
    """What the pipeline draws for a request; `watcher` is called after each step."""
    family = _FAMILIES[type(pipeline).__name__]
    seen: list[torch.Tensor] = []

    def note(pipeline: Any, step: int, timestep: Any, tensors: dict[str, torch.Tensor]) -> Any:
        seen.append(tensors["latents"])
        watcher()
        return tensors

    drawn = pipeline(
        **_arguments(request, family), output_type="pil" if pixels else "latent", callback_on_step_end=note
    )[0]
    if not pixels:
        return Drawn(seen[-1])
    pictures = drawn[0] if family.makes == "video" else drawn
    return Drawn(seen[-1], np.stack([np.asarray(picture) for picture in pictures]))


def _arguments(request: Request, family: Family) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "prompt": request.prompt,
        "height": request.height,
        "width": request.width,
        "num_inference_steps": request.num_steps,
        "max_sequence_length": request.max_sequence_length,
        "generator": torch.Generator("cpu").manual_seed(request.seed),
        family.guidance or "guidance_scale": request.guidance_scale,
    }
    if family.negative_prompt:
        arguments["negative_prompt"] = request.negative_prompt
    if family.makes == "video":
        arguments["num_frames"] = request.num_frames
    return arguments
