"""Diffusers' own pipeline beside ours, with weights of its own: what a user would run otherwise."""

from __future__ import annotations

import copy
import time
from typing import Any

import diffusers
import torch

from epe.config.demo import model_folder
from epe.config.stage import Stage as StageFile
from epe.messages import Request
from epe.models.checkpoint import load_pipeline
from epe.models.loading import Loading
from epe.parallel.inductor import allow_forms
from epe.runtime.rank import DTYPES

# Of each block, whose rows are others for each size. Torch's own limit is 8, beyond which a call fails.
MANY_FORMS = 10_000


class Rival:
    """The pipeline of a stage's checkpoint on a device. It needs as much memory as our own."""

    def __init__(self, stage: StageFile, target: torch.device) -> None:
        self._family = stage.family
        self._target = target
        # The VAE of videos keeps to float32, as diffusers' own examples have it.
        others = {"vae": torch.float32} if self._family.makes == "video" else {}
        self._pipeline: Any = load_pipeline(
            getattr(diffusers, self._family.pipeline),
            model_folder(stage.factory_args.model_path),
            family=self._family,
            loading=Loading(device=target, dtype=DTYPES[stage.dtype]),
            others=others,
        )
        self._pipeline.set_progress_bar_config(disable=True)

    def compiled(self, *, backend: str = "inductor") -> Rival:
        """Another one around the same weights, compiled as diffusers' documentation says; anew for each size, since
        kernels for all sizes are slower."""
        allow_forms(MANY_FORMS)
        other = copy.copy(self)
        other._pipeline = copy.copy(self._pipeline)
        weights = (*self._pipeline.transformer.parameters(), *self._pipeline.transformer.buffers())
        transformer = copy.deepcopy(self._pipeline.transformer, {id(each): each for each in weights})
        transformer.compile_repeated_blocks(fullgraph=True, dynamic=False, backend=backend)
        other._pipeline.transformer = transformer
        return other

    def step_s(self, request: Request, *, num_steps: int) -> float:
        """Seconds of a step, of `num_steps` that follow each other after a first one."""
        times: list[float] = []

        def note(pipeline: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            if step in (0, num_steps):
                times.append(self._now_s())
            return tensors

        self._pipeline(
            **self._arguments(request),
            num_inference_steps=1 + num_steps,
            output_type="latent",
            callback_on_step_end=note,
        )
        return (times[1] - times[0]) / num_steps

    def _arguments(self, request: Request) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "prompt": request.prompt,
            "height": request.height,
            "width": request.width,
            "max_sequence_length": request.max_sequence_length,
            "generator": torch.Generator("cpu").manual_seed(request.seed),
            self._family.guidance or "guidance_scale": request.guidance_scale,
        }
        if self._family.negative_prompt:
            arguments["negative_prompt"] = request.negative_prompt
        if self._family.makes == "video":
            arguments["num_frames"] = request.num_frames
        return arguments

    def _now_s(self) -> float:
        if self._target.type == "cuda":
            torch.cuda.synchronize(self._target)
        return time.perf_counter()
