"""Wan 2.1's tasks on diffusers' own components, with the bits of `WanPipeline`: encode, step, decode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import torch
from diffusers import UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from diffusers.pipelines.wan.pipeline_wan import prompt_clean

from epe.errors import BadSetting
from epe.families import family
from epe.messages import Request, Split
from epe.models.capturing import Capturable
from epe.models.causal_vae import decode_frames
from epe.models.contract import LATENTS, State
from epe.models.denoising import BRANCHES
from epe.models.divided import load_in_planes
from epe.models.guide import lead_away
from epe.models.loading import Loading
from epe.models.moving import Movable
from epe.models.pixels import video_of
from epe.models.prompts import check_tokens
from epe.models.reusing import Steps
from epe.models.schedule import sigmas_of
from epe.models.unipc import Unchecked, history_scalars, history_tensors, make_schedule, resume
from epe.models.wan.attention import make_attention_fast
from epe.models.wan.plan import LAYERS, PLAN
from epe.parallel import SequenceSharding, TeamLimits, TensorSharding, predict_apart
from epe.transport.exchange import Exchange


def load(model_path: Path, loading: Loading) -> WanAdapter:
    """The adapter of a local checkpoint.

    The VAE always works in float32, as diffusers' own examples have it. `cfg_parallel_degree` needs no second
    form here: the pipeline runs each guidance branch alone, and so does this adapter with either value.
    """
    pipeline, tensor = load_in_planes(
        WanPipeline,
        model_path,
        family=family("wan"),
        loading=loading,
        others={"vae": torch.float32},
        model_type=WanTransformer3DModel,
        layers=LAYERS,
    )
    _check(pipeline, model_path)
    return WanAdapter(pipeline, device=loading.device, team_limits=loading.team_limits, tensor=tensor)


class WanAdapter(Steps, Movable, Capturable):
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
        # Asked for it, the model goes through all of its modules.
        self._dtype = pipeline.transformer.dtype
        self.sharding = SequenceSharding(pipeline.transformer, PLAN, limits=team_limits)
        self._schedule = lru_cache(maxsize=64)(
            lambda num_steps, flow_shift: make_schedule(
                pipeline.scheduler, num_steps=num_steps, flow_shift=flow_shift, device=device
            )
        )

    def compile_blocks(self, *, backend: str = "inductor") -> None:
        """Compile the blocks of the transformer, which changes the last bits of what they give."""
        make_attention_fast(self.pipeline.transformer)
        self.sharding.share_attention()
        super().compile_blocks(backend=backend)

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
        branches = {name: embed.to(self._dtype) for name, embed in named if embed is not None}
        return State(request=request, step=0, tensors={LATENTS: self._noise(request), **branches})

    def velocities(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[torch.Tensor]:
        """Of requests of equal size, as one batch, each in the shape of its latents."""
        forward = partial(
            self._predict,
            latents=torch.cat([state.tensors[LATENTS] for state in states]),
            timesteps=[self._resumed(state).timesteps[state.step] for state in states],
        )
        names = [name for name in BRANCHES if name in states[0].tensors]
        branches = [torch.cat([state.tensors[name] for state in states]) for name in names]
        with torch.inference_mode(), self._tensor.over(exchange, split) as plane:
            predictions = predict_apart(forward, branches, exchange=plane, split=split)
        with torch.no_grad():
            return [
                lead_away(
                    [each[place : place + 1] for each in predictions], scale=state.request.guidance_scale
                )
                for place, state in enumerate(states)
            ]

    def advanced(self, state: State, velocity: torch.Tensor) -> State:
        """The state after its step in this direction."""
        scheduler = self._resumed(state)
        with torch.no_grad(), Unchecked():
            (latents,) = scheduler.step(
                velocity, scheduler.timesteps[state.step], state.tensors[LATENTS], return_dict=False
            )
        branches = {name: state.tensors[name] for name in BRANCHES if name in state.tensors}
        return State(
            request=state.request,
            step=state.step + 1,
            tensors={LATENTS: latents, **branches, **history_tensors(scheduler)},
            scalars=history_scalars(scheduler),
        )

    def sigmas(self, request: Request) -> tuple[float, ...]:
        """The noise levels before each step and after the last."""
        return sigmas_of(self._schedule(request.num_steps, request.flow_shift))

    def decode(self, state: State, exchange: Exchange | None = None) -> torch.Tensor | None:
        """Pixels of the finished latents: uint8, (frames, height, width, 3). Raises `NonFinite`."""
        with torch.inference_mode():
            latents = state.tensors[LATENTS]
            video = decode_frames(
                self.pipeline.vae, latents, exchange, graphs=self.graphs, writers=self.writers
            )
            return video_of(video, self.pipeline.video_processor)

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
        (prediction,) = self.sharding.run(
            exchange,
            hidden_states=latents.to(self._dtype),
            timestep=torch.stack(timesteps),
            encoder_hidden_states=embeds,
            return_dict=False,
        )
        return [prediction]


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
