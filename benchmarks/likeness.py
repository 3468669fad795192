"""How alike two sets of pictures are: PSNR, and SSIM (Wang et al., 2004) with its usual window."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import conv2d

_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
_AT_ONCE = 50


def psnr(ones: np.ndarray, others: np.ndarray) -> float:
    """The mean over pictures (pictures, height, width, 3) of 8 bits, in dB; equal pictures count as 100."""
    decibels = []
    for one, other in zip(ones, others, strict=True):
        error = np.mean((one.astype(np.float64) - other) ** 2)
        decibels.append(100.0 if error == 0 else min(100.0, 10 * np.log10(255**2 / error)))
    return round(float(np.mean(decibels)), 3)


def ssim(ones: np.ndarray, others: np.ndarray, device: torch.device) -> float:
    """The mean over pictures and channels."""
    parts = [
        _ssim(
            _planes(ones[start : start + _AT_ONCE], device), _planes(others[start : start + _AT_ONCE], device)
        )
        for start in range(0, len(ones), _AT_ONCE)
    ]
    return round(float(torch.cat(parts).mean()), 4)


def _planes(pictures: np.ndarray, device: torch.device) -> torch.Tensor:
    """(pictures x 3, 1, height, width)."""
    planes = torch.from_numpy(pictures).to(device).permute(0, 3, 1, 2).float()
    return planes.reshape(-1, 1, *planes.shape[2:])


def _ssim(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    places = torch.arange(_WINDOW, device=one.device) - _WINDOW // 2
    row = torch.exp(-(places.float() ** 2) / (2 * _SIGMA**2))
    window = (row[:, None] * row[None] / row.sum() ** 2)[None, None]
    mean, mean_other = conv2d(one, window), conv2d(other, window)
    spread = conv2d(one * one, window) - mean**2
    spread_other = conv2d(other * other, window) - mean_other**2
    common = conv2d(one * other, window) - mean * mean_other
    top = (2 * mean * mean_other + _C1) * (2 * common + _C2)
    return (top / ((mean**2 + mean_other**2 + _C1) * (spread + spread_other + _C2))).mean(dim=(1, 2, 3))
