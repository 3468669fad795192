"""The layers of decoders over the bands of a picture."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from epe.vae.canvas import Canvas, Here

Pointwise = Callable[[torch.Tensor], torch.Tensor]
Projection = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def reach(conv: nn.Conv2d | nn.Conv3d) -> int:
    """Rows beyond its own that a row of the output sees, on each side."""
    return conv.dilation[-2] * (conv.kernel_size[-2] - 1) // 2


def convolution(
    canvas: Canvas, layer: Here, conv: nn.Conv2d, *, before: Pointwise | None = None, scale: int = 1
) -> Here:
    """A convolution of pictures (1, channels, rows, columns). `before` is done to the rows that arrive, so that they
    travel as they were; where it makes `scale` rows of one, enough of them travel and the rest is cut off."""
    rows = reach(conv)
    travel = -(-rows // scale)

    def convolve(_: int, band: torch.Tensor) -> torch.Tensor:
        if before is not None:
            band = before(band)
        cut = scale * travel - rows
        band = band[..., cut : band.shape[-2] - cut, :]
        return functional.conv2d(
            band, conv.weight, conv.bias, padding=(0, conv.padding[1]), dilation=conv.dilation
        )

    return canvas.reaching(travel, convolve, layer)


class Memory:
    """What the causal convolutions of one decode remember of the frames before: the last ones as they arrived, by band,
    where bands rest. It begins with zeros, as if black frames had come. Before the `last` latent frame, say so: nothing
    is remembered for nobody."""

    def __init__(self, home: torch.device) -> None:
        self.last = False
        self._home = home
        self._frames: dict[tuple[nn.Module, int], torch.Tensor] = {}

    def extend(self, conv: nn.Module, place: int, band: torch.Tensor, num_frames: int) -> torch.Tensor:
        """The frames of `band` after the `num_frames` before them."""
        key = (conv, place)
        before = self._frames.pop(key, None)
        if before is None:
            whole = functional.pad(band, (0, 0, 0, 0, num_frames, 0))
        else:
            whole = torch.cat([before.to(band.device), band], dim=2)
        if not self.last:
            self._frames[key] = whole[:, :, -num_frames:].to(self._home, copy=True)
        return whole


def causal_convolution(canvas: Canvas, layer: Here, conv: nn.Conv3d, memory: Memory) -> Here:
    """A convolution of videos (1, channels, frames, rows, columns) that sees the frames before, and none after."""
    columns = conv.dilation[2] * (conv.kernel_size[2] - 1) // 2
    num_frames = conv.dilation[0] * (conv.kernel_size[0] - 1)

    def convolve(place: int, band: torch.Tensor) -> torch.Tensor:
        if num_frames:
            band = memory.extend(conv, place, band, num_frames)
        return functional.conv3d(
            band, conv.weight, conv.bias, padding=(0, 0, columns), dilation=conv.dilation
        )

    return canvas.reaching(reach(conv), convolve, layer)


def group_norm(canvas: Canvas, layer: Here, norm: nn.GroupNorm, *, after: Pointwise | None = None) -> Here:
    """Over the whole picture, from the moments of each band, merged in the order of the bands; of one band, as ever."""
    if canvas.num_bands == 1:
        return canvas.each(lambda band: norm(band) if after is None else after(norm(band)), layer)
    mean, variance = _merged(canvas, layer, norm.num_groups)
    per_group = norm.num_channels // norm.num_groups
    mean, variance = mean.repeat_interleave(per_group), variance.repeat_interleave(per_group)
    weight, bias = norm.weight.to(mean.dtype), norm.bias.to(mean.dtype)

    def normalize(band: torch.Tensor) -> torch.Tensor:
        done = functional.batch_norm(band, mean, variance, weight, bias, training=False, eps=norm.eps)
        return done if after is None else after(done)

    return canvas.each(normalize, layer)


def _merged(canvas: Canvas, layer: Here, num_groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each group over the whole picture (Chan, Golub and LeVeque, 1983)."""
    moments = canvas.gather_one_each(canvas.each(partial(_moments, num_groups=num_groups), layer))
    counts, means, squares = moments.unbind(dim=1)
    total = counts.sum(dim=0)
    mean = (counts * means).sum(dim=0) / total
    variance = (squares + counts * (means - mean) ** 2).sum(dim=0) / total
    return mean, variance


def _moments(band: torch.Tensor, *, num_groups: int) -> torch.Tensor:
    """(3, groups): values, their mean, the sum of their squared distances to it, in fp32 at least."""
    means, variances = (each.view(num_groups, -1) for each in _of_channels(band))
    mean = means.mean(dim=1)
    variance = (variances + (means - mean[:, None]) ** 2).mean(dim=1)
    count = torch.full_like(mean, band.numel() // num_groups)
    return torch.stack([count, mean, count * variance])


def _of_channels(band: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each channel of a picture, in fp32 at least."""
    if band.is_cuda:
        # Reads half precision as it is; the other way would write all of it in fp32 first.
        mean, inverse_deviation = torch.batch_norm_stats(band, 0.0)
        return mean, inverse_deviation**-2
    values = band.flatten(2).squeeze(0).to(torch.promote_types(band.dtype, torch.float32))
    variance, mean = torch.var_mean(values, dim=1, correction=0)
    return mean, variance


def attention(canvas: Canvas, layer: Here, queries: Here, others: Here, project: Projection) -> Here:
    """Attention of each band's tokens to those of the whole picture, projected and added to the `layer`.

    `queries` are (batch, heads, tokens, depth), `others` their keys and values, (2, batch, heads, tokens, depth).
    `project` is given what is attended and the band that it belongs to.
    """
    keys, values = canvas.gather(others, dim=-2)

    def attend(band: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return project(functional.scaled_dot_product_attention(own, keys, values), band)

    return canvas.each(attend, layer, queries)
