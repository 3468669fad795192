"""A small random-weight FLUX.1 checkpoint in the folder format of the real one, made without a download."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel

from epe.models.tiny_parts import picture_vae, save, word_tokenizer

_TEXT_WIDTH = 32


def make_tiny(directory: Path, *, seed: int = 0) -> None:
    """Write the checkpoint (about 5 MB) into `directory`; the same seed writes the same bytes."""
    clip, words = clip_tokenizer(), word_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = FluxPipeline(
            scheduler=_scheduler(),
            vae=picture_vae(),
            text_encoder=_clip(clip),
            tokenizer=clip,
            text_encoder_2=_t5(len(words)),
            tokenizer_2=words,
            transformer=_transformer(),
        )
    save(pipeline, directory)


def clip_tokenizer() -> CLIPTokenizer:
    """Letters alone."""
    letters = string.ascii_letters + string.digits + string.punctuation
    symbols = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(
        vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[], model_max_length=77
    )


def _clip(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=_TEXT_WIDTH,
        intermediate_size=2 * _TEXT_WIDTH,
        projection_dim=_TEXT_WIDTH,
        num_attention_heads=4,
        num_hidden_layers=2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModel(config).eval()


def _t5(num_symbols: int) -> T5EncoderModel:
    config = T5Config(
        vocab_size=num_symbols,
        d_model=_TEXT_WIDTH,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
    )
    return T5EncoderModel(config).eval()


def _scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(
        shift=3.0,
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=1.15,
        base_image_seq_len=256,
        max_image_seq_len=4096,
    )


def _transformer() -> FluxTransformer2DModel:
    # The inner width, 4 x 48, is a multiple of 32 as in the real model: with other widths the last values of a shard
    # go through the scalar code of CPU vector loops, which has other bits. Three heads divide by no even width.
    return FluxTransformer2DModel(
        in_channels=64,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=_TEXT_WIDTH,
        pooled_projection_dim=_TEXT_WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
    ).eval()
