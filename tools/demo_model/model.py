"""The demo model's networks, and its training forward: the numbers of ZImageTransformer2DModel, in one batch.

The model's own forward takes lists and rotates in complex numbers, which cannot be compiled; this one takes
tensors whose captions are padded to one length, and swaps the attention processor for a real-valued one.
`tests/tools/test_demo_model.py` holds both against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImageTransformer2DModel
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model

PATCH = 2
LATENT_CHANNELS, LATENT_SCALE = 16, 8
TOKEN_MULTIPLE = 32
SHIFT = 3.0
"""The scheduler's shift: sigma = SHIFT * s / (1 + (SHIFT - 1) * s)."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the networks are. The defaults are the shipped model's; tests use smaller ones."""

    dim: int = 384
    num_layers: int = 6
    num_heads: int = 8
    text_dim: int = 256
    text_layers: int = 3
    vae_channels: tuple[int, ...] = (32, 64, 128, 128)
    vae_groups: int = 16


def build_vae(sizes: Sizes) -> AutoencoderKL:
    """An eightfold autoencoder with 16 latent channels, as Z-Image's but narrow."""
    num_levels = len(sizes.vae_channels)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * num_levels,
        up_block_types=("UpDecoderBlock2D",) * num_levels,
        block_out_channels=sizes.vae_channels,
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=sizes.vae_groups,
        use_quant_conv=False,
        use_post_quant_conv=False,
        sample_size=256,
    )


def build_text_encoder(sizes: Sizes, *, vocabulary_size: int) -> Qwen3Model:
    """A Qwen3 whose last layer is never used: the pipeline reads `hidden_states[-2]`."""
    config = Qwen3Config(
        vocab_size=vocabulary_size,
        hidden_size=sizes.text_dim,
        intermediate_size=2 * sizes.text_dim,
        num_hidden_layers=sizes.text_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=sizes.text_dim // 4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    return Qwen3Model(config)


def build_transformer(sizes: Sizes) -> ZImageTransformer2DModel:
    """Z-Image's single-stream transformer, with pad tokens that are not all zero and a zero last layer."""
    third = sizes.dim // sizes.num_heads // 3
    transformer = ZImageTransformer2DModel(
        in_channels=LATENT_CHANNELS,
        dim=sizes.dim,
        n_layers=sizes.num_layers,
        n_refiner_layers=1,
        n_heads=sizes.num_heads,
        n_kv_heads=sizes.num_heads,
        cap_feat_dim=sizes.text_dim,
        axes_dims=[third, third, third],
        axes_lens=[1024, 256, 256],
    )
    for token in (transformer.x_pad_token, transformer.cap_pad_token):
        nn.init.normal_(token, std=0.02)
    nn.init.zeros_(transformer.all_final_layer["2-1"].linear.weight)
    return transformer


def build_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """The scheduler that the model is trained for."""
    return FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=SHIFT)


def caption_features(text_encoder: Qwen3Model, ids: Tensor) -> Tensor:
    """What the pipeline reads of captions (B, L), (B, L, text_dim). Attention is causal: padding on the right, which
    the pipeline masks, cannot reach the words."""
    return text_encoder(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[-2]


class RealRotaryProcessor:
    """The attention of ZSingleStreamAttnProcessor without complex numbers; `freqs_cis` is (S, head_dim/2, 2)."""

    def __call__(
        self,
        attn: nn.Module,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        freqs_cis: Tensor | None = None,
    ) -> Tensor:
        weight = torch.cat([attn.to_q.weight, attn.to_k.weight, attn.to_v.weight])
        query, key, value = F.linear(hidden_states, weight).unflatten(-1, (3, attn.heads, -1)).unbind(2)
        query = _rotated(attn.norm_q(query), freqs_cis).to(value.dtype)
        key = _rotated(attn.norm_k(key), freqs_cis).to(value.dtype)
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (query, key, value)))
        return attn.to_out[0](out.transpose(1, 2).flatten(2))


def velocity(
    transformer: ZImageTransformer2DModel, latents: Tensor, times: Tensor, features: Tensor, is_word: Tensor
) -> Tensor:
    """The transformer's output for latents (B, C, H, W) at `times` (B,), which are 1 - sigma.

    `features` (B, L, text_dim) with L a multiple of 32 that every caption's own padding reaches; `is_word` (B, L).
    """
    batch, channels, height, width = latents.shape
    picture_rope, caption_rope = _rotations(
        transformer, height // PATCH, width // PATCH, features.shape[1], latents.device
    )
    num_tokens = height // PATCH * (width // PATCH)
    modulation = transformer.t_embedder(times * transformer.t_scale)
    x = transformer.all_x_embedder["2-1"](_patches(latents))
    pads = transformer.x_pad_token.to(x.dtype).expand(batch, picture_rope.shape[0] - num_tokens, -1)
    x = torch.cat([x, pads], 1)
    for block in transformer.noise_refiner:
        x = block(x, None, picture_rope, modulation)
    caption = transformer.cap_embedder(features)
    caption = torch.where(is_word[..., None], caption, transformer.cap_pad_token.to(caption.dtype))
    for block in transformer.context_refiner:
        caption = block(caption, None, caption_rope)
    x = torch.cat([x, caption.to(x.dtype)], 1)
    rope = torch.cat([picture_rope, caption_rope])
    for block in transformer.layers:
        x = block(x, None, rope, modulation)
    x = transformer.all_final_layer["2-1"](x, c=modulation)[:, :num_tokens]
    x = x.reshape(batch, height // PATCH, width // PATCH, PATCH, PATCH, channels)
    return x.permute(0, 5, 1, 3, 2, 4).reshape(latents.shape)


def use_real_rotations(transformer: ZImageTransformer2DModel) -> None:
    """Makes the blocks ready for `velocity`; the model's own forward does not work afterwards."""
    for block in (*transformer.noise_refiner, *transformer.context_refiner, *transformer.layers):
        block.attention.set_processor(RealRotaryProcessor())


def _patches(latents: Tensor) -> Tensor:
    batch, channels, height, width = latents.shape
    cut = latents.reshape(batch, channels, height // PATCH, PATCH, width // PATCH, PATCH)
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, PATCH * PATCH * channels)


def _rotations(
    transformer: ZImageTransformer2DModel, rows: int, columns: int, caption_length: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    axes = tuple(zip(transformer.axes_dims, transformer.axes_lens, strict=True))
    return _rotation_tables(axes, transformer.rope_theta, rows, columns, caption_length, device)


@lru_cache(maxsize=64)
def _rotation_tables(
    axes: tuple[tuple[int, int], ...],
    theta: float,
    rows: int,
    columns: int,
    caption_length: int,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of picture tokens and of caption tokens, (S, head_dim/2, 2).

    Captions count 1, 2, … on the first axis, the picture stands at the next number, its padding at the origin.
    """
    zero = torch.zeros(1, dtype=torch.long)
    picture = torch.cartesian_prod(zero + caption_length + 1, torch.arange(rows), torch.arange(columns))
    padding = torch.zeros(-len(picture) % TOKEN_MULTIPLE, 3, dtype=torch.long)
    caption = torch.cartesian_prod(torch.arange(1, caption_length + 1), zero, zero)
    tables = [
        torch.outer(torch.arange(length).double(), theta ** (-torch.arange(0, dim, 2).double() / dim)).float()
        for dim, length in axes
    ]
    angles = [
        torch.cat([table[ids[:, axis]] for axis, table in enumerate(tables)], 1)
        for ids in (torch.cat([picture, padding]), caption)
    ]
    pair = [torch.stack([angle.cos(), angle.sin()], -1).to(device) for angle in angles]
    return pair[0], pair[1]


def _rotated(x: Tensor, rotations: Tensor) -> Tensor:
    """`x` (B, S, heads, head_dim) with neighbouring channels as the parts of complex numbers."""
    real, imaginary = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = rotations[None, :, None].unbind(-1)
    turned = torch.stack([real * cosine - imaginary * sine, real * sine + imaginary * cosine], -1)
    return turned.flatten(-2)
