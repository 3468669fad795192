"""The sizes of the real models, from the configurations that are published with their weights: data alone.

`tiny` shrinks widths and depths and leaves all else as it is, so that the same code runs on a CPU in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLQwenImage,
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
    FluxPipeline,
    FluxTransformer2DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)

Config = dict[str, Any]
# (height, width, frames).
Size = tuple[int, int, int]

# Where configurations say how many layers there are of a kind.
DEPTHS = {"num_layers", "num_single_layers", "n_layers", "n_refiner_layers"}

_PICTURE_VAE: Config = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "latent_channels": 16,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
}
_TINY_PICTURE_VAE: Config = {
    "block_out_channels": (16, 16, 32, 32),
    "layers_per_block": 1,
    "norm_num_groups": 8,
}
_TINY_VIDEO_VAE: Config = {"base_dim": 8, "num_res_blocks": 1}


@dataclass(frozen=True, kw_only=True)
class Model:
    """One model; `tiny` and `tiny_vae` replace values of its two configurations, and `shared` some where four ranks
    keep their weights on one GPU of 139 GiB and the whole would not fit.

    `text_width` names the value of `config` that is the width of an encoded prompt. Of `sizes`, the tokens of the
    first are shared evenly by 2 and 4 ranks, those of the second are an odd number.
    """

    pipeline: type[Any]
    transformer: type[Any]
    config: Config
    text_width: str
    tiny: Config
    shared: Config = field(default_factory=dict)
    vae: type[Any]
    vae_config: Config = field(default_factory=dict)
    tiny_vae: Config
    vae_dtype: torch.dtype | None = None
    scheduler: Callable[[], Any]
    sizes: tuple[Size, Size] = ((1024, 1024, 1), (1008, 1040, 1))
    tiny_sizes: tuple[Size, Size] = ((256, 256, 1), (272, 304, 1))
    guidance_scale: float


def _flow(**config: Any) -> Callable[[], Any]:
    return lambda: FlowMatchEulerDiscreteScheduler(**config)


MODELS: dict[str, Model] = {
    # black-forest-labs/FLUX.1-dev: 11.9 B.
    "flux1": Model(
        pipeline=FluxPipeline,
        transformer=FluxTransformer2DModel,
        config={
            "num_layers": 19,
            "num_single_layers": 38,
            "attention_head_dim": 128,
            "num_attention_heads": 24,
            "joint_attention_dim": 4096,
            "pooled_projection_dim": 768,
            "guidance_embeds": True,
            "axes_dims_rope": (16, 56, 56),
        },
        text_width="joint_attention_dim",
        tiny={
            "num_layers": 2,
            "num_single_layers": 3,
            "attention_head_dim": 16,
            "num_attention_heads": 6,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": (4, 4, 8),
        },
        vae=AutoencoderKL,
        vae_config=_PICTURE_VAE,
        tiny_vae=_TINY_PICTURE_VAE,
        scheduler=_flow(shift=3.0, use_dynamic_shifting=True),
        guidance_scale=3.5,
    ),
    # black-forest-labs/FLUX.2-klein-base-4B: 3.9 B.
    "flux2-klein": Model(
        pipeline=Flux2KleinPipeline,
        transformer=Flux2Transformer2DModel,
        config={
            "in_channels": 128,
            "num_layers": 5,
            "num_single_layers": 20,
            "attention_head_dim": 128,
            "num_attention_heads": 24,
            "joint_attention_dim": 7680,
            "guidance_embeds": False,
        },
        text_width="joint_attention_dim",
        tiny={
            "num_layers": 2,
            "num_single_layers": 3,
            "attention_head_dim": 32,
            "num_attention_heads": 3,
            "joint_attention_dim": 48,
            "axes_dims_rope": (8, 8, 8, 8),
        },
        vae=AutoencoderKLFlux2,
        tiny_vae=_TINY_PICTURE_VAE,
        scheduler=_flow(shift=3.0, use_dynamic_shifting=True),
        guidance_scale=4.0,
    ),
    # Tongyi-MAI/Z-Image: 6.2 B.
    "zimage": Model(
        pipeline=ZImagePipeline,
        transformer=ZImageTransformer2DModel,
        config={
            "dim": 3840,
            "n_layers": 30,
            "n_refiner_layers": 2,
            "n_heads": 30,
            "n_kv_heads": 30,
            "cap_feat_dim": 2560,
            "axes_dims": [32, 48, 48],
            "axes_lens": [1024, 512, 512],
        },
        text_width="cap_feat_dim",
        tiny={
            "dim": 48,
            "n_layers": 4,
            "n_heads": 3,
            "n_kv_heads": 3,
            "cap_feat_dim": 32,
            "axes_dims": [8, 4, 4],
        },
        vae=AutoencoderKL,
        vae_config=_PICTURE_VAE,
        tiny_vae=_TINY_PICTURE_VAE,
        scheduler=_flow(shift=6.0),
        guidance_scale=4.0,
    ),
    # Qwen/Qwen-Image: 20.4 B.
    "qwen-image": Model(
        pipeline=QwenImagePipeline,
        transformer=QwenImageTransformer2DModel,
        config={
            "num_layers": 60,
            "attention_head_dim": 128,
            "num_attention_heads": 24,
            "joint_attention_dim": 3584,
            "axes_dims_rope": (16, 56, 56),
        },
        text_width="joint_attention_dim",
        tiny={
            "num_layers": 4,
            "attention_head_dim": 32,
            "num_attention_heads": 3,
            "joint_attention_dim": 32,
            "axes_dims_rope": (8, 12, 12),
        },
        shared={"num_layers": 40},
        vae=AutoencoderKLQwenImage,
        tiny_vae=_TINY_VIDEO_VAE,
        scheduler=_flow(
            shift=1.0,
            use_dynamic_shifting=True,
            max_shift=0.9,
            max_image_seq_len=8192,
            shift_terminal=0.02,
        ),
        guidance_scale=4.0,
    ),
    # Wan-AI/Wan2.1-T2V-1.3B-Diffusers: 1.4 B.
    "wan": Model(
        pipeline=WanPipeline,
        transformer=WanTransformer3DModel,
        config={
            "num_attention_heads": 12,
            "attention_head_dim": 128,
            "text_dim": 4096,
            "freq_dim": 256,
            "ffn_dim": 8960,
            "num_layers": 30,
        },
        text_width="text_dim",
        tiny={
            "num_attention_heads": 3,
            "attention_head_dim": 32,
            "text_dim": 32,
            "ffn_dim": 128,
            "num_layers": 4,
        },
        vae=AutoencoderKLWan,
        tiny_vae=_TINY_VIDEO_VAE,
        vae_dtype=torch.float32,
        scheduler=lambda: UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        sizes=((480, 832, 17), (464, 816, 17)),
        tiny_sizes=((64, 64, 5), (80, 112, 9)),
        guidance_scale=5.0,
    ),
}
