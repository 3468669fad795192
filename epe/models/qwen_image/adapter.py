"""Qwen-Image's tasks on diffusers' own components, with the bits of `QwenImagePipeline`: encode, step, decode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import QwenImagePipeline

from epe.errors import BadSetting
from epe.families import family
from epe.messages import Request
from epe.models.capturing import Capturable
from epe.models.causal_vae import decode_frames
from epe.models.checkpoint import load_pipeline
from epe.models.contract import LATENTS, State
from epe.models.denoising import BRANCHES, StepsApart, latents_of
from epe.models.guide import lead_away_at_length
from epe.models.loading import Loading
from epe.models.modulating import MODULATIONS, Modulations
from epe.models.moving import Movable
from epe.models.noise import packed_noise
from epe.models.pixels import picture_of
from epe.models.prompts import check_tokens
from epe.models.qwen_image.attention import make_attention_fast
from epe.models.qwen_image.plan import PLAN
from epe.models.schedule import dynamic_schedule
from epe.parallel import Forward, SequenceSharding, TeamLimits
from epe.transport.exchange import Exchange, SoloExchange


def load(model_path: Path, loading: Loading) -> QwenImageAdapter:
    """The adapter of a local checkpoint.

    `cfg_parallel_degree` needs no second form here: the pipeline runs each guidance branch alone, and so does
    this adapter with either value.
    """
    pipeline = load_pipeline(QwenImagePipeline, model_path, family=family("qwen-image"), loading=loading)
    if pipeline.transformer.config.guidance_embeds:
        raise BadSetting(
            f"{model_path} takes the guidance scale as an input; only Qwen-Image with true guidance is available"
        )
    if pipeline.transformer.zero_cond_t:
        raise BadSetting(f"{model_path} is made to edit pictures; only Qwen-Image from text is available")
    return QwenImageAdapter(pipeline, device=loading.device, team_limits=loading.team_limits)


class QwenImageAdapter(StepsApart, Movable, Capturable):
    """Qwen-Image on one device. State: latents (1, picture rows, 4 x channels) in the model's type, and one
    tensor (1, text rows, text width) for each guidance branch, without padding and so without a mask.
    """

    def __init__(self, pipeline: QwenImagePipeline, *, device: torch.device, team_limits: TeamLimits) -> None:
        self.family = family("qwen-image")
        self.pipeline = pipeline
        self._device = device
        self.sharding = SequenceSharding(pipeline.transformer, PLAN, limits=team_limits)
        _forget_positions(pipeline.transformer.pos_embed)
        self._modulations = Modulations(pipeline.transformer.transformer_blocks, ("img_mod", "txt_mod"))
        make_schedule = partial(
            dynamic_schedule, pipeline.scheduler, num_tokens=self.family.num_tokens, device=device
        )
        super().__init__(make_schedule=make_schedule, guide=lead_away_at_length)

    def compile_blocks(self, *, backend: str = "inductor") -> None:
        """Compile the blocks of the transformer, which changes the last bits of what they give."""
        make_attention_fast(self.pipeline.transformer)
        self.sharding.share_attention()
        super().compile_blocks(backend=backend)

    def encode(self, request: Request) -> State:
        """Prompt embeddings and the first latents. Raises `BadRequest` for a prompt that is too long."""
        guided = self.family.num_conditions(request.guidance_scale) == 2
        texts = {"prompt": request.prompt, **({"negative_prompt": request.negative_prompt} if guided else {})}
        for param, text in texts.items():
            self._check_length(text, param=param, allowed=request.max_sequence_length)
        with torch.no_grad():
            branches = {f"{param}_embeds": self._embeds(text) for param, text in texts.items()}
        latents = packed_noise(self.pipeline, request, dtype=branches[BRANCHES[0]].dtype, device=self._device)
        return State(request=request, step=0, tensors={LATENTS: latents, **branches})

    def decode(self, state: State, exchange: Exchange | None = None) -> torch.Tensor | None:
        """Pixels of the finished latents: uint8, (1, height, width, 3). Raises `NonFinite`."""
        pipeline, request = self.pipeline, state.request
        with torch.inference_mode():
            latents = pipeline._unpack_latents(
                state.tensors[LATENTS], request.height, request.width, pipeline.vae_scale_factor
            )
            # The VAE is one of videos; a picture is a video of one frame.
            video = decode_frames(pipeline.vae, latents, exchange, graphs=self.graphs, writers=self.writers)
            return picture_of(None if video is None else video[:, :, 0], pipeline.image_processor)

    def _check_length(self, text: str, *, param: str, allowed: int) -> None:
        """Counted as the pipeline does: with the end of the template, without its beginning."""
        prompt = self.pipeline.prompt_template_encode.format(text)
        num_tokens = len(self.pipeline.tokenizer(prompt).input_ids)
        num_tokens -= self.pipeline.prompt_template_encode_start_idx
        check_tokens(num_tokens, param=param, allowed=allowed, counted="tokens with the end of its template")

    def _embeds(self, text: str) -> torch.Tensor:
        """(1, text rows, text width). A prompt alone has no padding, so there is no mask."""
        embeds, mask = self.pipeline.encode_prompt(
            prompt=text, device=self._device, max_sequence_length=self.family.max_text_tokens
        )
        if mask is not None:
            raise ValueError("the prompt was padded, and its mask would be lost")
        return embeds

    def _passes(self, states: Sequence[State], timesteps: torch.Tensor) -> Forward[torch.Tensor]:
        levels = timesteps.to(states[0].tensors[LATENTS].dtype) / 1000
        if self.graphs is None:
            modulations = self._modulate(SoloExchange(), (levels,), {})
        else:
            modulations = self.graphs.run(self._modulate, SoloExchange(), (levels,), {})
        return partial(self._predict, states=states, levels=levels, modulations=modulations)

    def _modulate(self, _: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """What the blocks make of noise levels, (requests,); every rank computes it, without its lane."""
        (levels,) = args
        model = self.pipeline.transformer
        # Of the second it takes the type alone.
        return self._modulations.of(model.time_text_embed(levels, levels))

    def _predict(
        self,
        branches: Sequence[torch.Tensor],
        exchange: Exchange,
        *,
        states: Sequence[State],
        levels: torch.Tensor,
        modulations: torch.Tensor,
    ) -> list[torch.Tensor]:
        """The predictions of one branch over the lane, in the shape of the latents."""
        (embeds,) = branches
        latents, patch = latents_of(states), self.family.patch
        shape = (1, states[0].request.height // patch, states[0].request.width // patch)
        (prediction,) = self.sharding.run(
            exchange,
            hidden_states=latents,
            timestep=levels,
            encoder_hidden_states=embeds,
            img_shapes=[[shape]] * len(states),
            attention_kwargs={MODULATIONS: modulations},
            return_dict=False,
        )
        return [prediction]


def _forget_positions(table: Any) -> None:
    """Let the rotary table of a size be made anew in each pass: diffusers keeps those of the last 128 sizes, and a
    graph would read one after it was let go."""
    table._compute_video_freqs = partial(type(table)._compute_video_freqs.__wrapped__, table)
