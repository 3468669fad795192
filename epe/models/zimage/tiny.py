"""A small random-weight Z-Image checkpoint in the folder format of the real one, made without a download."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from torch import nn
from transformers import Qwen3Config, Qwen3Model

from epe.models.tiny_parts import chat_tokenizer, picture_vae, save

_TEXT_WIDTH = 32


def make_tiny(directory: Path, *, seed: int = 0) -> None:
    """Write the checkpoint (about 5 MB) into `directory`; the same seed writes the same bytes."""
    tokenizer = chat_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = ZImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=False),
            vae=picture_vae(),
            text_encoder=_text_encoder(len(tokenizer)),
            tokenizer=tokenizer,
            transformer=_transformer(),
        )
    save(pipeline, directory)


def _text_encoder(num_symbols: int) -> Qwen3Model:
    config = Qwen3Config(
        vocab_size=num_symbols,
        hidden_size=_TEXT_WIDTH,
        intermediate_size=2 * _TEXT_WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=4096,
        initializer_range=0.2,
    )
    return Qwen3Model(config).eval()


def _transformer() -> ZImageTransformer2DModel:
    # The inner width, 8/3 of `dim`, is a multiple of 32 as in the real model: with other widths the last values
    # of a shard go through the scalar code of CPU vector loops, whose SiLU has other bits.
    transformer = ZImageTransformer2DModel(
        in_channels=16,
        dim=48,
        n_layers=4,
        n_refiner_layers=2,
        n_heads=3,
        n_kv_heads=3,
        cap_feat_dim=_TEXT_WIDTH,
        axes_dims=[8, 4, 4],
        axes_lens=[1024, 512, 512],
    )
    # Zeros in a fresh model, trained in a real one: a lost pad row must show.
    nn.init.normal_(transformer.x_pad_token)
    nn.init.normal_(transformer.cap_pad_token)
    return transformer.eval()
