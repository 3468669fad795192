"""FLUX.2-klein's tasks on diffusers' own components, with the bits of `Flux2KleinPipeline`: encode, step, decode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

from epe.errors import BadRequest
from epe.families import family
from epe.messages import Request
from epe.models.capturing import Capturable
from epe.models.checkpoint import load_pipeline
from epe.models.contract import LATENTS, State
from epe.models.decoding import decoded
from epe.models.denoising import BRANCHES, StepsApart, latents_of
from epe.models.flux2_klein.plan import PLAN
from epe.models.flux_attention import make_attention_fast
from epe.models.guide import lead_away
from epe.models.loading import Loading
from epe.models.moving import Movable
from epe.models.noise import packed_noise
from epe.models.pixels import picture_of
from epe.models.prompts import check_chat
from epe.models.schedule import linear_schedule
from epe.parallel import Forward, SequenceSharding, TeamLimits
from epe.transport.exchange import Exchange


def load(model_path: Path, loading: Loading) -> Flux2KleinAdapter:
    """The adapter of a local checkpoint."""
    if loading.cfg_parallel_degree != 1:
        raise ValueError(
            f"FLUX.2-klein has no cfg axis; cfg_parallel_degree is {loading.cfg_parallel_degree}"
        )
    pipeline = load_pipeline(Flux2KleinPipeline, model_path, family=family("flux2-klein"), loading=loading)
    return Flux2KleinAdapter(pipeline, device=loading.device, team_limits=loading.team_limits)


class Flux2KleinAdapter(StepsApart, Movable, Capturable):
    """FLUX.2-klein on one device. State: latents (1, picture rows, 4 x channels) in the model's type, and one tensor
    (1, text rows, text width) for each guidance branch.
    """

    def __init__(
        self, pipeline: Flux2KleinPipeline, *, device: torch.device, team_limits: TeamLimits
    ) -> None:
        self.family = family("flux2-klein")
        self.pipeline = pipeline
        self._device = device
        # Asked for it, the model goes through all of its modules.
        self._dtype = pipeline.transformer.dtype
        self.sharding = SequenceSharding(pipeline.transformer, PLAN, limits=team_limits)
        # What is made on the host is sent to the device once: a step would wait for it.
        self._latent_ids = lru_cache(maxsize=64)(self._make_latent_ids)
        self._text_ids = lru_cache(maxsize=64)(self._make_text_ids)
        super().__init__(make_schedule=self._make_schedule, guide=lead_away)

    def compile_blocks(self, *, backend: str = "inductor") -> None:
        """Compile the blocks of the transformer, which changes the last bits of what they give."""
        make_attention_fast(self.pipeline.transformer)
        self.sharding.share_attention()
        super().compile_blocks(backend=backend)

    def encode(self, request: Request) -> State:
        """Prompt embeddings and the first latents. Raises `BadRequest` for a prompt that is too long."""
        guided = self._is_guided(request)
        allowed = request.max_sequence_length
        check_chat(request.prompt, self.pipeline.tokenizer, thinking=False, param="prompt", allowed=allowed)
        with torch.no_grad():
            branches = {
                name: self.pipeline.encode_prompt(
                    prompt=prompt, device=self._device, max_sequence_length=allowed
                )[0]
                for name, prompt in zip(BRANCHES, (request.prompt, "")[: 1 + guided], strict=False)
            }
        latents = packed_noise(self.pipeline, request, dtype=branches[BRANCHES[0]].dtype, device=self._device)
        return State(request=request, step=0, tensors={LATENTS: latents, **branches})

    def decode(self, state: State, exchange: Exchange | None = None) -> torch.Tensor | None:
        """Pixels of the finished latents: uint8, (1, height, width, 3). Raises `NonFinite`."""
        pipeline, vae, latents = self.pipeline, self.pipeline.vae, state.tensors[LATENTS]
        with torch.inference_mode():
            rows, columns = self._grid(state.request)
            latents = pipeline._unpack_latents_with_ids(
                latents, self._latent_ids(rows, columns), rows, columns
            )
            mean = vae.bn.running_mean.view(1, -1, 1, 1).to(latents.device, latents.dtype)
            std = torch.sqrt(vae.bn.running_var.view(1, -1, 1, 1) + vae.config.batch_norm_eps)
            latents = latents * std.to(latents.device, latents.dtype) + mean
            picture = decoded(
                vae, pipeline._unpatchify_latents(latents), exchange, graphs=self.graphs, writers=self.writers
            )
            return picture_of(picture, pipeline.image_processor)

    def _is_guided(self, request: Request) -> bool:
        """The pipeline would ignore guidance of a distilled checkpoint."""
        guided = self.family.num_conditions(request.guidance_scale) == 2
        if guided and self.pipeline.config.is_distilled:
            scale = request.guidance_scale
            message = f"guidance_scale {scale:g} has no effect: this checkpoint is distilled; leave it out"
            raise BadRequest(message, param="guidance_scale")
        return guided

    def _grid(self, request: Request) -> tuple[int, int]:
        """Rows and columns of picture tokens."""
        return request.height // self.family.patch, request.width // self.family.patch

    def _make_latent_ids(self, rows: int, columns: int) -> torch.Tensor:
        """Positions (1, picture rows, 4) of the latents' rows."""
        shape_alone = torch.empty(1, 0, rows, columns)
        return self.pipeline._prepare_latent_ids(shape_alone).to(self._device)

    def _make_text_ids(self, num_requests: int, rows: int) -> torch.Tensor:
        """Positions (requests, text rows, 4)."""
        shape_alone = torch.empty(num_requests, rows, 0)
        return self.pipeline._prepare_text_ids(shape_alone).to(self._device)

    def _make_schedule(self, *, num_steps: int, height: int, width: int) -> FlowMatchEulerDiscreteScheduler:
        """A scheduler set for a request's steps."""
        mu = compute_empirical_mu(self.family.num_tokens(height=height, width=width), num_steps)
        return linear_schedule(self.pipeline.scheduler, num_steps=num_steps, mu=mu, device=self._device)

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
        """The velocities for one branch over the lane, in the shape of the latents."""
        (embeds,) = branches
        latents = latents_of(states)
        (velocity,) = self.sharding.run(
            exchange,
            hidden_states=latents.to(self._dtype),
            timestep=timesteps.to(latents.dtype) / 1000,
            encoder_hidden_states=embeds,
            txt_ids=self._text_ids(*embeds.shape[:2]),
            img_ids=self._latent_ids(*self._grid(states[0].request)),
            return_dict=False,
        )
        return [velocity]
