"""Z-Image's tasks on diffusers' own components, with the bits of `ZImagePipeline`: encode, step, decode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from diffusers.models.transformers.transformer_z_image import SEQ_MULTI_OF
from diffusers.pipelines.z_image.pipeline_z_image import (
    calculate_shift,
    get_default_z_image_sigmas,
    retrieve_timesteps,
)

from epe.families import family
from epe.messages import Request, Split
from epe.models.capturing import Capturable
from epe.models.contract import LATENTS, State
from epe.models.decoding import decoded
from epe.models.denoising import BRANCHES, FlowSteps
from epe.models.divided import load_in_planes
from epe.models.loading import Loading
from epe.models.moving import Movable
from epe.models.pixels import picture_of
from epe.models.prompts import check_chat
from epe.models.schedule import at_step, sent
from epe.models.zimage.attention import make_attention_fast
from epe.models.zimage.block import modulate_beforehand
from epe.models.zimage.captions import Captions
from epe.models.zimage.feed_forward import join_gates
from epe.models.zimage.plan import LAYERS, PLAN
from epe.parallel import (
    SequenceSharding,
    TeamLimits,
    TensorSharding,
    predict_apart,
    predict_together,
)
from epe.transport.exchange import Exchange


def load(model_path: Path, loading: Loading) -> ZImageAdapter:
    """The adapter of a local checkpoint."""
    pipeline, tensor = load_in_planes(
        ZImagePipeline,
        model_path,
        family=family("zimage"),
        loading=loading,
        model_type=ZImageTransformer2DModel,
        layers=LAYERS,
    )
    return ZImageAdapter(
        pipeline,
        device=loading.device,
        cfg_parallel_degree=loading.cfg_parallel_degree,
        team_limits=loading.team_limits,
        tensor=tensor,
    )


class ZImageAdapter(FlowSteps, Movable, Capturable):
    """Z-Image on one device. State: latents (1, channels, height/8, width/8) in fp32, and one tensor
    (tokens, text width) for each guidance branch.

    `cfg_parallel_degree` 1 runs both branches as one batch, as the pipeline does; 2 runs each alone.
    """

    def __init__(
        self,
        pipeline: ZImagePipeline,
        *,
        device: torch.device,
        cfg_parallel_degree: int,
        team_limits: TeamLimits,
        tensor: TensorSharding,
    ) -> None:
        if cfg_parallel_degree not in (1, 2):
            raise ValueError(f"cfg_parallel_degree is {cfg_parallel_degree}; it is 1 or 2")
        self.family = family("zimage")
        self.pipeline = pipeline
        self._device = device
        self._predict_branches = predict_together if cfg_parallel_degree == 1 else predict_apart
        self._tensor = tensor
        # Asked for it, the model goes through all of its modules.
        self._dtype = pipeline.transformer.dtype
        self.sharding = SequenceSharding(pipeline.transformer, PLAN, limits=team_limits)
        self._captions = Captions(pipeline.transformer)
        self._schedule = lru_cache(maxsize=64)(self._make_schedule)

    def compile_blocks(self, *, backend: str = "inductor") -> None:
        """Compile the blocks of the transformer, which changes the last bits of what they give."""
        make_attention_fast(self.pipeline.transformer)
        join_gates(self.pipeline.transformer)
        modulate_beforehand(self.pipeline.transformer)
        self.sharding.share_attention()
        super().compile_blocks(backend=backend)

    def encode(self, request: Request) -> State:
        """Prompt embeddings and the first latents. Raises `BadRequest` for a prompt that is too long."""
        guided = self.family.num_conditions(request.guidance_scale) == 2
        allowed = min(request.max_sequence_length, self._max_caption)
        self._check_length(request.prompt, param="prompt", allowed=allowed)
        if guided:
            self._check_length(request.negative_prompt, param="negative_prompt", allowed=allowed)
        with torch.no_grad():
            embeds, negative_embeds = self.pipeline.encode_prompt(
                prompt=[request.prompt],
                negative_prompt=[request.negative_prompt],
                do_classifier_free_guidance=guided,
                device=self._device,
                max_sequence_length=request.max_sequence_length,
            )
        branches = dict(zip(BRANCHES, (*embeds, *negative_embeds), strict=False))
        return State(request=request, step=0, tensors={LATENTS: self._noise(request), **branches})

    def velocities(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[torch.Tensor]:
        """Of requests of equal size, as one batch: (1, channels, height, width) each."""
        forward = partial(
            self._predict,
            latents=torch.cat([state.tensors[LATENTS] for state in states]),
            timesteps=[at_step(self._schedule_of(s.request), s).timesteps[s.step] for s in states],
        )
        names = [name for name in BRANCHES if name in states[0].tensors]
        branches = [[state.tensors[name] for state in states] for name in names]
        with torch.inference_mode(), self._tensor.over(exchange, split) as plane:
            predictions = self._predict_branches(forward, branches, exchange=plane, split=split)
        with torch.no_grad():
            return [
                -_guide([each[place] for each in predictions], scale=state.request.guidance_scale)
                for place, state in enumerate(states)
            ]

    def decode(self, state: State, exchange: Exchange | None = None) -> torch.Tensor | None:
        """Pixels of the finished latents: uint8, (1, height, width, 3). Raises `NonFinite`."""
        vae = self.pipeline.vae
        with torch.inference_mode():
            latents = state.tensors[LATENTS].to(vae.dtype)
            latents = (latents / vae.config.scaling_factor) + vae.config.shift_factor
            return picture_of(
                decoded(vae, latents, exchange, graphs=self.graphs, writers=self.writers),
                self.pipeline.image_processor,
            )

    def _check_length(self, text: str, *, param: str, allowed: int) -> None:
        check_chat(text, self.pipeline.tokenizer, thinking=True, param=param, allowed=allowed)

    @property
    def _max_caption(self) -> int:
        """Tokens that the rotary table covers: captions are padded, start at 1, the picture comes after."""
        return (self.pipeline.transformer.config.axes_lens[0] - 2) // SEQ_MULTI_OF * SEQ_MULTI_OF

    def _noise(self, request: Request) -> torch.Tensor:
        """Drawn on the CPU, so that a seed means the same picture on every device."""
        return self.pipeline.prepare_latents(
            1,
            self.pipeline.transformer.in_channels,
            request.height,
            request.width,
            torch.float32,
            self._device,
            torch.Generator("cpu").manual_seed(request.seed),
        )

    def _make_schedule(self, num_steps: int, height: int, width: int) -> FlowMatchEulerDiscreteScheduler:
        """A scheduler set for a request's steps; only copies of it take a step."""
        scheduler = type(self.pipeline.scheduler).from_config(self.pipeline.scheduler.config)
        config = scheduler.config
        mu = calculate_shift(
            self.family.num_tokens(height=height, width=width),
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", 1.15),
        )
        sigmas = get_default_z_image_sigmas(num_steps)
        retrieve_timesteps(scheduler, num_steps, sigmas=sigmas, mu=mu)
        return sent(scheduler, self._device)

    def _predict(
        self,
        branches: Sequence[list[torch.Tensor]],
        exchange: Exchange,
        *,
        latents: torch.Tensor,
        timesteps: list[torch.Tensor],
    ) -> list[torch.Tensor]:
        """(requests, channels, 1, height, width) for each branch, which has a prompt of each request, as one batch
        over the lane."""
        inputs = latents.to(self._dtype).repeat(len(branches), 1, 1, 1).unsqueeze(2)
        time = ((1000 - torch.stack(timesteps)) / 1000).repeat(len(branches))
        pictures = list(inputs.unbind(dim=0))
        padded = [self._captions.padded(prompt) for branch in branches for prompt in branch]
        prompts, masks = (list(each) for each in zip(*padded, strict=True))
        predicted = self.sharding.run(
            exchange, pictures, time, prompts, return_dict=False, caption_masks=masks
        )[0]
        return list(torch.stack(predicted).split(len(timesteps)))


def _guide(predictions: list[torch.Tensor], *, scale: float) -> torch.Tensor:
    """(1, channels, height, width) in fp32, led away from the second branch (Ho and Salimans, 2022)."""
    positive = predictions[0].float()
    if len(predictions) == 1:
        return positive.transpose(0, 1)
    negative = predictions[1].float()
    return (positive + scale * (positive - negative)).transpose(0, 1)
