"""Decoded pictures as the bytes that files are made of."""

from __future__ import annotations

import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor

from epe.messages import Stage
from epe.models.finite import require_finite


def picture_of(decoded: torch.Tensor, processor: VaeImageProcessor) -> np.ndarray:
    """uint8, (1, height, width, 3), from what a VAE gives, (1, 3, height, width). Raises `NonFinite`."""
    require_finite(decoded, name="the decoded picture", stage=Stage.DECODE)
    picture = processor.postprocess(decoded, output_type="pt")
    # Rounded as the PIL path does, but on the device: a quarter of the bytes crosses to the host.
    pixels = picture.permute(0, 2, 3, 1).float().mul(255).round().to(torch.uint8)
    return pixels.contiguous().cpu().numpy()
