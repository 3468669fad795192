"""The first latents: drawn on the CPU from the request's seed, so that a seed means the same on every device."""

from __future__ import annotations

import torch
from diffusers import Flux2KleinPipeline, FluxPipeline, QwenImagePipeline

from epe.messages import Request


def packed_noise(
    pipeline: FluxPipeline | Flux2KleinPipeline | QwenImagePipeline,
    request: Request,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """(1, picture rows, 4 x channels) on `device`, as the pipeline draws and packs them."""
    drawn = pipeline.prepare_latents(
        1,
        pipeline.transformer.config.in_channels // 4,
        request.height,
        request.width,
        dtype,
        device,
        torch.Generator("cpu").manual_seed(request.seed),
    )
    # FLUX's pipelines give the positions of the rows beside them.
    packed: torch.Tensor = drawn[0] if isinstance(drawn, tuple) else drawn
    # FLUX.2's lie with the rows innermost, of which a GPU may make a product by another kernel, with other last bits.
    # Neither a rank's part of them nor a state that has moved lies so.
    return packed.contiguous()
