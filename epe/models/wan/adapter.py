"""Wan 2.1's tasks on diffusers' own components, with the bits of `WanPipeline`: encode, step, decode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from diffusers import UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from diffusers.pipelines.wan.pipeline_wan import prompt_clean

from epe.errors import BadSetting
from epe.families import family
from epe.messages import Request, Split, StateHeader
from epe.models.capturing import Capturable
from epe.models.causal_vae import decode_frames
from epe.models.checkpoint import default_dtype
from epe.models.contract import State
from epe.models.divided import load_in_planes
from epe.models.guide import lead_away
from epe.models.moving import pack_state, unpack_state
from epe.models.pixels import video_of
from epe.models.prompts import check_tokens
from epe.models.unipc import history_scalars, history_tensors, make_schedule, resume
from epe.models.wan.plan import LAYERS, PLAN
from epe.parallel import (
    ONE_PLANE,
    Plane,
    SequenceSharding,
    TeamLimits,
    TensorSharding,
    predict_apart,
    team_limits,
)
from epe.transport.exchange import Exchange

LATENTS = "latents"
# The guidance branches; the second is there only with guidance.
BRANCHES = ("prompt_embeds", "negative_prompt_embeds")


def load(
    model_path: Path,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    cfg_parallel_degree: int = 1,
    attention_mode: str = "agkv",
    ulysses_degree: int | None = None,
    plane: Plane = ONE_PLANE,
) -> WanAdapter:
    """The adapter of a local checkpoint; `dtype` defaults to bfloat16 on CUDA and float32 elsewhere.

    The VAE always works in float32, as diffusers' own examples have it. `cfg_parallel_degree` needs no second
    form here: the pipeline runs each guidance branch alone, and so does this adapter with either value.
    """
    pipeline, tensor = load_in_planes(
        WanPipeline,
        model_path,
        family=family("wan"),
        device=device,
        dtype=dtype or default_dtype(device),
        others={"vae": torch.float32},
        model_type=WanTransformer3DModel,
        layers=LAYERS,
        plane=plane,
    )
    _check(pipeline, model_path)
    limits = team_limits(attention_mode, ulysses_degree)
    return WanAdapter(pipeline, device=device, team_limits=limits, tensor=tensor)


class WanAdapter(Capturable):
    """Wan 2.1 on one device. State: latents (1, channels, frames, height/8, width/8) in fp32, one tensor
    (1, text rows, text width) for each guidance branch, and the scheduler's history.
    """

    def __init__(
        self,
        pipeline: WanPipeline,
        *,
        device: torch.device,
        team_limits: TeamLimits,
        tensor: TensorSharding,
    ) -> None:
        self.family = family("wan")
        self.pipeline = pipeline
        self._device = device
        self._tensor = tensor
        self._sharding = SequenceSharding(pipeline.transformer, PLAN, limits=team_limits)
        self._schedule = lru_cache(maxsize=64)(
            lambda num_steps, flow_shift: make_schedule(
                pipeline.scheduler, num_steps=num_steps, flow_shift=flow_shift, device=self._device
            )
        )

    def encode(self, request: Request) -> State:
        """Prompt embeddings and the first latents. Raises `BadRequest` for a prompt that is too long."""
        guided = self.family.num_conditions(request.guidance_scale) == 2
        self._check_length(request.prompt, param="prompt", allowed=request.max_sequence_length)
        if guided:
            self._check_length(
                request.negative_prompt, param="negative_prompt", allowed=request.max_sequence_length
            )
        with torch.no_grad():
            embeds = self.pipeline.encode_prompt(
                prompt=request.prompt,
                negative_prompt=request.negative_prompt,
                do_classifier_free_guidance=guided,
                max_sequence_length=request.max_sequence_length,
                device=self._device,
            )
        named = zip(BRANCHES, embeds, strict=True)
        dtype = self.pipeline.transformer.dtype
        branches = {name: embed.to(dtype) for name, embed in named if embed is not None}
        return State(request=request, step=0, tensors={LATENTS: self._noise(request), **branches})

    def step(self, state: State, exchange: Exchange, split: Split) -> State:
        """One denoising step over the lane of `exchange`; every rank of it returns the same state."""
        return self.step_together([state], exchange, split)[0]

    def step_together(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[State]:
        """One step of requests of equal size as one batch; with one alone, the bits of `step`."""
        schedulers = [self._resumed(state) for state in states]
        forward = partial(
            self._predict,
            latents=torch.cat([state.tensors[LATENTS] for state in states]),
            timesteps=[s.timesteps[state.step] for s, state in zip(schedulers, states, strict=True)],
        )
        names = [name for name in BRANCHES if name in states[0].tensors]
        branches = [torch.cat([state.tensors[name] for state in states]) for name in names]
        with torch.inference_mode(), self._tensor.over(exchange, split) as plane:
            predictions = predict_apart(forward, branches, exchange=plane, split=split)
        return [
            _stepped(state, scheduler, [each[place : place + 1] for each in predictions])
            for place, (state, scheduler) in enumerate(zip(states, schedulers, strict=True))
        ]

    def decode(self, state: State, exchange: Exchange | None = None) -> np.ndarray | None:
        """Pixels of the finished latents: uint8, (frames, height, width, 3). Raises `NonFinite`."""
        with torch.inference_mode():
            video = decode_frames(self.pipeline.vae, state.tensors[LATENTS], exchange)
            return video_of(video, self.pipeline.video_processor)

    def export_state(self, state: State) -> tuple[StateHeader, tuple[torch.Tensor, ...]]:
        """The state, the scheduler's history included, in host memory."""
        return pack_state(state)

    def import_state(self, request: Request, header: StateHeader, tensors: tuple[torch.Tensor, ...]) -> State:
        """The state on this rank's device, with the bits that were exported."""
        return unpack_state(request, header, tensors, device=self._device)

    def _resumed(self, state: State) -> UniPCMultistepScheduler:
        """Raises `ValueError` when all steps are done."""
        if state.step >= state.request.num_steps:
            raise ValueError(f"request {state.request.id} has only {state.request.num_steps} steps")
        return resume(self._schedule(state.request.num_steps, state.request.flow_shift), state)

    def _check_length(self, text: str, *, param: str, allowed: int) -> None:
        num_tokens = len(self.pipeline.tokenizer(prompt_clean(text)).input_ids)
        check_tokens(num_tokens, param=param, allowed=allowed)

    def _noise(self, request: Request) -> torch.Tensor:
        """Drawn on the CPU, so that a seed means the same video on every device."""
        return self.pipeline.prepare_latents(
            1,
            self.pipeline.transformer.config.in_channels,
            request.height,
            request.width,
            request.num_frames,
            torch.float32,
            self._device,
            torch.Generator("cpu").manual_seed(request.seed),
        )

    def _predict(
        self,
        branches: Sequence[torch.Tensor],
        exchange: Exchange,
        *,
        latents: torch.Tensor,
        timesteps: list[torch.Tensor],
    ) -> list[torch.Tensor]:
        """The prediction of one branch over the lane, in the shape of the latents of all requests."""
        (embeds,) = branches
        (prediction,) = self._sharding.run(
            exchange,
            hidden_states=latents.to(self.pipeline.transformer.dtype),
            timestep=torch.stack(timesteps),
            encoder_hidden_states=embeds,
            return_dict=False,
        )
        return [prediction]


def _stepped(state: State, scheduler: UniPCMultistepScheduler, predictions: list[torch.Tensor]) -> State:
    """The state after a step in the direction of its branches' predictions, each in the shape of its latents."""
    timestep = scheduler.timesteps[state.step]
    with torch.no_grad():
        velocity = lead_away(predictions, scale=state.request.guidance_scale)
        (latents,) = scheduler.step(velocity, timestep, state.tensors[LATENTS], return_dict=False)
    branches = {name: state.tensors[name] for name in BRANCHES if name in state.tensors}
    return State(
        request=state.request,
        step=state.step + 1,
        tensors={LATENTS: latents, **branches, **history_tensors(scheduler)},
        scalars=history_scalars(scheduler),
    )


def _check(pipeline: WanPipeline, model_path: Path) -> None:
    """Raises `BadSetting` for a checkpoint that the same pipeline loads and that this adapter would draw wrongly."""
    config = pipeline.config
    if config.boundary_ratio is not None or pipeline.transformer_2 is not None or config.expand_timesteps:
        raise BadSetting(
            f"{model_path} holds Wan 2.2, which has a second model or timesteps by row; use Wan 2.1"
        )
    if not isinstance(pipeline.scheduler, UniPCMultistepScheduler):
        found = type(pipeline.scheduler).__name__
        raise BadSetting(
            f"the scheduler of {model_path} is {found}; family 'wan' needs UniPCMultistepScheduler"
        )
    if not pipeline.scheduler.config.use_flow_sigmas:
        raise BadSetting(
            f"the scheduler of {model_path} has no flow sigmas; family 'wan' needs use_flow_sigmas"
        )
