"""A small random-weight FLUX.2-klein checkpoint in the folder format of the real one, made without a download."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
)
from transformers import Qwen3Config, Qwen3ForCausalLM

from epe.models.tiny_parts import chat_tokenizer, save

_TEXT_WIDTH = 16
# The pipeline reads the hidden states after 9, 18 and 27 layers.
_TEXT_LAYERS = 28


def make_tiny(directory: Path, *, seed: int = 0) -> None:
    """Write the checkpoint (about 5 MB, not distilled) into `directory`; the same seed writes the same bytes."""
    tokenizer = chat_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = Flux2KleinPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
            vae=_vae(),
            text_encoder=_text_encoder(len(tokenizer)),
            tokenizer=tokenizer,
            transformer=_transformer(),
            is_distilled=False,
        )
    save(pipeline, directory)


def _text_encoder(num_symbols: int) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=num_symbols,
        hidden_size=_TEXT_WIDTH,
        intermediate_size=2 * _TEXT_WIDTH,
        num_hidden_layers=_TEXT_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config).eval()


def _transformer() -> Flux2Transformer2DModel:
    # The inner width, 3 x 96, is a multiple of 32 as in the real model: with other widths the last values of a shard
    # go through the scalar code of CPU vector loops, which has other bits. Three heads divide by no even width.
    return Flux2Transformer2DModel(
        in_channels=128,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=32,
        num_attention_heads=3,
        joint_attention_dim=3 * _TEXT_WIDTH,
        axes_dims_rope=(8, 8, 8, 8),
        guidance_embeds=False,
    ).eval()


def _vae() -> AutoencoderKLFlux2:
    vae = AutoencoderKLFlux2(
        block_out_channels=(16, 16, 32, 32),
        layers_per_block=1,
        latent_channels=32,
        norm_num_groups=8,
        sample_size=1024,
    )
    # Trained in a real one: latents that are not brought back to their scale must show.
    vae.bn.running_mean.normal_(0, 0.1)
    vae.bn.running_var.uniform_(0.5, 1.5)
    return vae.eval()
