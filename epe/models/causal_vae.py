"""Decoding with the causal video VAEs of Wan and Qwen-Image.

Decoding whole they keep a feature cache on the module and are not re-entrant: one decode at a time on an instance.
The device thread, which alone calls an adapter's tasks, keeps to that.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLQwenImage, AutoencoderKLWan

from epe.graphs import Graphs
from epe.models.decoding import decoded
from epe.transport.exchange import Exchange
from epe.vae import Writers


def decode_frames(
    vae: AutoencoderKLWan | AutoencoderKLQwenImage,
    latents: torch.Tensor,
    exchange: Exchange | None,
    *,
    graphs: Graphs | None = None,
    writers: Writers | None = None,
) -> torch.Tensor | None:
    """(1, 3, frames, height, width), about -1 to 1, of latents (1, channels, frames, height, width); on all
    but the first rank of a lane None. With `graphs` a picture is captured; a video is not, since a graph would have to
    copy the frames that are remembered."""
    graphs = graphs if latents.shape[2] == 1 else None
    latents = latents.to(vae.dtype)
    shape = (1, vae.config.z_dim, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean).view(shape).to(latents.device, latents.dtype)
    # Divided by the inverse, as the pipelines do it: a product has other bits.
    inverse_std = 1.0 / torch.tensor(vae.config.latents_std).view(shape).to(latents.device, latents.dtype)
    return decoded(vae, latents / inverse_std + mean, exchange, graphs=graphs, writers=writers)
