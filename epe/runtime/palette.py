"""Fits the palette of a checkpoint: what its latents look like in colour, roughly, so that no preview is decoded."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from epe.media.preview import Floats, to_grid
from epe.messages import Palette, Request
from epe.models.contract import LATENTS, Adapter, State
from epe.telemetry.log import get_logger

log = get_logger("runtime")

_SIDE = 256
# Cells of equal latents on a side, in two trials: the colour of areas, and of details.
_BLOCKS = (4, 1)
# Against latent values that hardly change a colour.
_RIDGE = 1e-2


def palette_of(adapter: Adapter) -> Palette | None:
    """The palette, or None where none can be fitted: that costs previews and nothing else."""
    try:
        return fit_palette(adapter)
    except Exception as error:  # whatever a decoder raises that a picture may never meet
        log.error("palette.was_not_fitted", reason=f"{type(error).__name__}: {error}")
        return None


def fit_palette(adapter: Adapter) -> Palette:
    """By least squares over what the decoder makes of random blocks of latents. It decodes two small pictures."""
    pairs = [_trial(adapter, block=block, seed=seed) for seed, block in enumerate(_BLOCKS)]
    values = np.concatenate([cells for cells, _ in pairs])
    colours = np.concatenate([each for _, each in pairs])
    inputs = np.concatenate([values, np.ones((len(values), 1), np.float32)], axis=1).astype(np.float64)
    ridge = _RIDGE * len(inputs) * np.eye(inputs.shape[1])
    ridge[-1, -1] = 0.0
    weights = np.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ colours)
    return Palette(weights=tuple((float(r), float(g), float(b)) for r, g, b in weights))


def _trial(adapter: Adapter, *, block: int, seed: int) -> tuple[Floats, Floats]:
    """(cells, values) of latents and (cells, 3) of the colours, from 0 to 1, that they are decoded to."""
    state = adapter.encode(_request(adapter, seed=seed))
    latents = _in_blocks(state.tensors[LATENTS], block)
    decoded = adapter.decode(
        State(request=state.request, step=0, tensors={**state.tensors, LATENTS: latents})
    )
    assert decoded is not None, "without an exchange every decode has pixels"
    grid = to_grid(latents.float().cpu().numpy(), height=_SIDE, width=_SIDE)
    rows, columns, num_values = grid.shape
    cells = (
        decoded[0].cpu().numpy().reshape(rows, _SIDE // rows, columns, _SIDE // columns, 3).mean(axis=(1, 3))
        / 255
    )
    return grid.reshape(-1, num_values), cells.reshape(-1, 3).astype(np.float32)


def _request(adapter: Adapter, *, seed: int) -> Request:
    own = adapter.family.defaults
    return Request(
        id="palette",
        prompt="",
        height=_SIDE,
        width=_SIDE,
        num_frames=adapter.family.frames.base,
        num_steps=adapter.family.min_steps,
        guidance_scale=own.guidance_scale,
        seed=seed,
        max_sequence_length=own.max_sequence_length,
    )


def _in_blocks(noise: torch.Tensor, block: int) -> torch.Tensor:
    """Noise that is the same in blocks of cells, as colours of areas are, and of the noise's own size and type."""
    packed = noise.ndim == 3
    side = round(noise.shape[1] ** 0.5) if packed else noise.shape[-1]
    planes = noise.transpose(1, 2).reshape(1, -1, side, side) if packed else noise.flatten(1, -3)
    few = planes[..., ::block, ::block].float()
    same = functional.interpolate(few, size=planes.shape[-2:], mode="nearest").to(noise.dtype)
    return (
        same.reshape(1, -1, side * side).transpose(1, 2).contiguous() if packed else same.reshape(noise.shape)
    )
