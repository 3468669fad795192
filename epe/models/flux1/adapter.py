"""FLUX.1's tasks on diffusers' own components, with the bits of `FluxPipeline`: encode, step, decode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import torch
from diffusers import FluxPipeline

from epe.errors import BadRequest
from epe.families import family
from epe.messages import Request
from epe.models.capturing import Capturable
from epe.models.checkpoint import load_pipeline
from epe.models.contract import LATENTS, State
from epe.models.decoding import decoded
from epe.models.denoising import BRANCHES, StepsApart, latents_of
from epe.models.flux1.plan import PLAN
from epe.models.flux1.single import keep_apart
from epe.models.flux_attention import make_attention_fast
from epe.models.guide import lead_away
from epe.models.loading import Loading
from epe.models.moving import Movable
from epe.models.noise import packed_noise
from epe.models.pixels import picture_of
from epe.models.prompts import check_tokens
from epe.models.schedule import dynamic_schedule
from epe.parallel import Forward, SequenceSharding, TeamLimits
from epe.transport.exchange import Exchange

POOLED = "pooled_prompt_embeds"


def load(model_path: Path, loading: Loading) -> Flux1Adapter:
    """The adapter of a local checkpoint."""
    if loading.cfg_parallel_degree != 1:
        raise ValueError(
            f"FLUX.1 has one guidance branch; cfg_parallel_degree is {loading.cfg_parallel_degree}"
        )
    pipeline = load_pipeline(FluxPipeline, model_path, family=family("flux1"), loading=loading)
    return Flux1Adapter(pipeline, device=loading.device, team_limits=loading.team_limits)


class Flux1Adapter(StepsApart, Movable, Capturable):
    """FLUX.1 on one device. State: latents (1, picture rows, 4 x channels) in the model's type, the prompt as
    (1, text rows, text width) by T5 and as (1, pooled width) by CLIP.
    """

    def __init__(self, pipeline: FluxPipeline, *, device: torch.device, team_limits: TeamLimits) -> None:
        self.family = family("flux1")
        self.pipeline = pipeline
        self._device = device
        self.sharding = SequenceSharding(pipeline.transformer, PLAN, limits=team_limits)
        # What is made on the host is sent to the device once: a step would wait for it.
        self._scales = lru_cache(maxsize=256)(partial(torch.tensor, device=device, dtype=torch.float32))
        self._positions = lru_cache(maxsize=64)(self._make_positions)
        make_schedule = partial(
            dynamic_schedule, pipeline.scheduler, num_tokens=self.family.num_tokens, device=device
        )
        super().__init__(make_schedule=make_schedule, guide=lead_away)

    def compile_blocks(self, *, backend: str = "inductor") -> None:
        """Compile the blocks of the transformer, which changes the last bits of what they give."""
        keep_apart(self.pipeline.transformer)
        make_attention_fast(self.pipeline.transformer)
        self.sharding.share_attention()
        super().compile_blocks(backend=backend)

    def encode(self, request: Request) -> State:
        """Prompt embeddings and the first latents. Raises `BadRequest` for a prompt that is too long for T5.

        CLIP reads only as much of it as CLIP can, as the model was trained.
        """
        self._check_guidance(request.guidance_scale)
        num_tokens = len(self.pipeline.tokenizer_2(request.prompt).input_ids)
        check_tokens(num_tokens, param="prompt", allowed=request.max_sequence_length)
        with torch.no_grad():
            embeds, pooled, _ = self.pipeline.encode_prompt(
                prompt=request.prompt, device=self._device, max_sequence_length=request.max_sequence_length
            )
        latents = packed_noise(self.pipeline, request, dtype=embeds.dtype, device=self._device)
        return State(request=request, step=0, tensors={LATENTS: latents, BRANCHES[0]: embeds, POOLED: pooled})

    def decode(self, state: State, exchange: Exchange | None = None) -> torch.Tensor | None:
        """Pixels of the finished latents: uint8, (1, height, width, 3). Raises `NonFinite`."""
        vae, request = self.pipeline.vae, state.request
        with torch.inference_mode():
            latents = self.pipeline._unpack_latents(
                state.tensors[LATENTS], request.height, request.width, self.pipeline.vae_scale_factor
            )
            latents = (latents / vae.config.scaling_factor) + vae.config.shift_factor
            return picture_of(
                decoded(vae, latents, exchange, graphs=self.graphs, writers=self.writers),
                self.pipeline.image_processor,
            )

    def _check_guidance(self, scale: float) -> None:
        """A scale that the model does not take is refused, unless it is the default or says that there is none."""
        takes_scale = self.pipeline.transformer.config.guidance_embeds
        if not takes_scale and scale not in (0.0, self.family.defaults.guidance_scale):
            message = f"guidance_scale {scale:g} has no effect: this checkpoint takes none; leave it out"
            raise BadRequest(message, param="guidance_scale")

    def _make_positions(self, height: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """(picture rows, 3)."""
        rows, columns = (side // self.family.patch for side in (height, width))
        return self.pipeline._prepare_latent_image_ids(1, rows, columns, self._device, dtype)

    def _passes(self, states: Sequence[State], timesteps: torch.Tensor) -> Forward[torch.Tensor]:
        return partial(self._predict, states=states, timesteps=timesteps)

    def _predict(
        self,
        branches: Sequence[torch.Tensor],
        exchange: Exchange,
        *,
        states: Sequence[State],
        timesteps: torch.Tensor,
    ) -> list[torch.Tensor]:
        """The velocities for the one branch over the lane, in the shape of the latents."""
        (embeds,) = branches
        request, latents = states[0].request, latents_of(states)
        takes_scale = self.pipeline.transformer.config.guidance_embeds
        scales = tuple(state.request.guidance_scale for state in states)
        (velocity,) = self.sharding.run(
            exchange,
            hidden_states=latents,
            timestep=timesteps.to(latents.dtype) / 1000,
            guidance=self._scales(scales) if takes_scale else None,
            pooled_projections=torch.cat([state.tensors[POOLED] for state in states]),
            encoder_hidden_states=embeds,
            txt_ids=torch.zeros(embeds.shape[1], 3, device=self._device, dtype=embeds.dtype),
            img_ids=self._positions(request.height, request.width, embeds.dtype),
            return_dict=False,
        )
        return [velocity]
