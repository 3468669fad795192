"""A rough picture of latents in flight, without a decoder: arithmetic on arrays that takes milliseconds.

The colours come from a palette, a linear map that was fitted to the checkpoint's own decoder. What shows through the
noise is estimated from the first latents, which are the noise: in flow matching (Lipman et al., 2022; Liu et al., 2022)
latents on their way are (1 - s) picture + s noise, and s is the share of the noise in them, since picture and noise
hardly correlate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from epe.media.picture import encode_image
from epe.messages import OutputFormat, Palette

Floats = NDArray[np.float32]
# Before this share of the way the picture is too faint to be told from the noise.
_LEAST_SHARE = 0.05


def to_grid(latents: Floats, *, height: int, width: int) -> Floats:
    """(rows, columns, values) of a picture, or of the first frame of a video, whose sides are in pixels.

    Latents are (1, values, rows, columns), (1, values, frames, rows, columns), or packed: (1, rows x columns, values).
    """
    if latents.ndim == 3:
        num_cells = latents.shape[1]
        rows = round((num_cells * height / width) ** 0.5)
        return np.reshape(latents[0], (rows, num_cells // rows, -1))
    first = latents[0, :, 0] if latents.ndim == 5 else latents[0]
    return np.ascontiguousarray(first.transpose(1, 2, 0))


def without_noise(latents: Floats, noise: Floats) -> Floats:
    """What these latents are about to become."""
    share = float(np.vdot(latents, noise) / np.vdot(noise, noise))
    share = min(max(share, 0.0), 1.0 - _LEAST_SHARE)
    return np.asarray((latents - share * noise) / (1.0 - share), dtype=np.float32)


def coloured(grid: Floats, palette: Palette) -> NDArray[np.uint8]:
    """(rows, columns, 3): one pixel for each cell."""
    weights = np.asarray(palette.weights, dtype=np.float32)
    colours = grid @ weights[:-1] + weights[-1]
    return np.asarray((np.clip(colours, 0.0, 1.0) * 255).round(), dtype=np.uint8)


def encode_preview(
    latents: Floats,
    noise: Floats,
    palette: Palette,
    *,
    height: int,
    width: int,
    format: OutputFormat,
    compression: int,
) -> bytes:
    """The file of a preview, as large as the picture will be. Slow: call it from a thread."""
    grid = to_grid(without_noise(latents, noise), height=height, width=width)
    small = Image.fromarray(coloured(grid, palette))
    whole = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))
    return encode_image(whole, format=format, compression=compression)
