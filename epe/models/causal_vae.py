"""Decoding with the causal video VAEs of Wan and Qwen-Image, and their pixels.

They keep a feature cache on the module and are not re-entrant: one decode at a time on an instance. The device
thread, which alone calls an adapter's tasks, keeps to that.
"""

from __future__ import annotations

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage, AutoencoderKLWan

from epe.messages import Stage
from epe.models.finite import require_finite


def decode_frames(vae: AutoencoderKLWan | AutoencoderKLQwenImage, latents: torch.Tensor) -> torch.Tensor:
    """(1, 3, frames, height, width), about -1 to 1, of latents (1, channels, frames, height, width).

    Raises `NonFinite`.
    """
    latents = latents.to(vae.dtype)
    shape = (1, vae.config.z_dim, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean).view(shape).to(latents.device, latents.dtype)
    # Divided by the inverse, as the pipelines do it: a product has other bits.
    inverse_std = 1.0 / torch.tensor(vae.config.latents_std).view(shape).to(latents.device, latents.dtype)
    frames = vae.decode(latents / inverse_std + mean, return_dict=False)[0]
    require_finite(frames, name="the decoded frames", stage=Stage.DECODE)
    return frames


def to_pixels(images: torch.Tensor) -> np.ndarray:
    """uint8 (frames, height, width, 3) of images (frames, 3, height, width) from 0 to 1.

    Rounded as the pipelines' PIL path does, but on the device: a quarter of the bytes crosses to the host.
    """
    pixels = images.permute(0, 2, 3, 1).float().mul(255).round().to(torch.uint8)
    return pixels.contiguous().cpu().numpy()
