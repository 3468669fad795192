"""Decoded pictures and videos as the bytes that files are made of, still on the device."""

from __future__ import annotations

import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.video_processor import VideoProcessor

from epe.messages import Stage
from epe.models.finite import require_finite


def picture_of(decoded: torch.Tensor | None, processor: VaeImageProcessor) -> torch.Tensor | None:
    """uint8, (1, height, width, 3), from what a VAE gives, (1, 3, height, width), None of nothing. Raises
    `NonFinite`."""
    if decoded is None:
        return None
    pixels = _bytes(processor.postprocess(decoded, output_type="pt"))
    require_finite(decoded, name="the decoded picture", stage=Stage.DECODE)
    return pixels


def video_of(decoded: torch.Tensor | None, processor: VideoProcessor) -> torch.Tensor | None:
    """uint8, (frames, height, width, 3), from what a VAE gives, (1, 3, frames, height, width), None of nothing.
    Raises `NonFinite`."""
    if decoded is None:
        return None
    pixels = _bytes(processor.postprocess_video(decoded, output_type="pt")[0])
    require_finite(decoded, name="the decoded video", stage=Stage.DECODE)
    return pixels


def _bytes(pictures: torch.Tensor) -> torch.Tensor:
    """Rounded as the PIL path does, but on the device: a quarter of the bytes crosses to the host."""
    pixels = pictures.permute(0, 2, 3, 1).float().mul(255).round().to(torch.uint8)
    return pixels.contiguous()
