"""The layers of decoders over the bands of a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from epe.vae.canvas import Canvas, Here, layout_of
from epe.vae.writers import OverChannels, OverGroups, Writers

Pointwise = Callable[[torch.Tensor], torch.Tensor]
Projection = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Of the weights of attention that are on the device at once, where no fused kernel is made for so deep a head.
WEIGHTS_BYTES = 256 << 20
FUSED_DEPTH = 256


def reach(conv: nn.Conv2d | nn.Conv3d) -> int:
    """Rows beyond its own that a row of the output sees, on each side."""
    return conv.dilation[-2] * (conv.kernel_size[-2] - 1) // 2


def lay_out_weights(decoder: nn.Module) -> None:
    """Let weights lie in memory as the bands do: each convolution would turn them over anew. Values stay."""
    for weight in decoder.parameters():
        if not weight.is_contiguous(memory_format=layout_of(weight)):
            weight.data = weight.data.contiguous(memory_format=layout_of(weight))


def convolution(
    canvas: Canvas, layer: Here, conv: nn.Conv2d, *, before: Sequence[Pointwise] = (), scale: int = 1
) -> Here:
    """A convolution of pictures (1, channels, rows, columns) of what `before` makes of them, which may repeat rows and
    columns `scale` times."""
    num_rows = reach(conv)

    def convolve(_: int, framed: torch.Tensor) -> torch.Tensor:
        writers = None if conv.bias is None else canvas.writers
        convolved = functional.conv2d(
            framed,
            conv.weight,
            conv.bias if writers is None else None,
            padding=(0, conv.padding[1]),
            dilation=conv.dilation,
        )
        if writers is not None:
            writers.add_bias(convolved, conv.bias)
        return convolved

    lay_out = partial(_laid_out, num_rows=num_rows, before=before, scale=scale, writers=canvas.writers)
    return canvas.reaching(layer, num_rows, lay_out, convolve, scale=scale)


def _laid_out(
    band: torch.Tensor,
    *,
    num_rows: int,
    before: Sequence[Pointwise],
    scale: int = 1,
    num_frames: int = 0,
    writers: Writers | None = None,
) -> torch.Tensor:
    """What `before` makes of a band, with room for `num_rows` on both sides and `num_frames` in front."""
    *shape, height, width = band.shape
    height, width = scale * height, scale * width
    if num_frames:
        shape[2] += num_frames
    framed = torch.empty(
        (*shape, height + 2 * num_rows, width),
        dtype=band.dtype,
        device=band.device,
        memory_format=layout_of(band),
    )
    own = framed[:, :, num_frames:] if num_frames else framed
    _write(own[..., num_rows : num_rows + height, :], band, before, writers)
    return framed


def _write(
    into: torch.Tensor, given: torch.Tensor, before: Sequence[Pointwise], writers: Writers | None
) -> None:
    if not (before and isinstance(before[-1], nn.SiLU)):
        into.copy_(_done(given, before))
    elif writers is not None and len(before) == 2 and writers.write(into, given, before[0]):
        pass  # One pass instead of three.
    elif into.is_cuda:
        torch.ops.aten.silu.out(_done(given, before[:-1]), out=into)  # One pass instead of two.
    else:
        into.copy_(_done(given, before))


def _done(given: torch.Tensor, before: Sequence[Pointwise]) -> torch.Tensor:
    for one in before:
        given = one(given)
    return given


class Memory:
    """What the causal convolutions of one decode remember of the frames before: the last ones as they arrived, by band,
    where bands rest. It begins with zeros, as if black frames had come. Before the `last` latent frame, say so: nothing
    is remembered for nobody."""

    def __init__(self, home: torch.device) -> None:
        self.last = False
        self._home = home
        self._frames: dict[tuple[nn.Module, int], torch.Tensor] = {}

    def recall(self, conv: nn.Module, place: int, framed: torch.Tensor, num_frames: int) -> None:
        """Write the `num_frames` before those of `framed` in front of them, and remember its last ones."""
        key = (conv, place)
        front = framed[:, :, :num_frames]
        before = self._frames.pop(key, None)
        if before is None:
            front.zero_()
        else:
            front.copy_(before)
        if not self.last:
            self._frames[key] = framed[:, :, -num_frames:].to(self._home, copy=True)


def causal_convolution(
    canvas: Canvas, layer: Here, conv: nn.Conv3d, memory: Memory, *, before: Sequence[Pointwise] = ()
) -> Here:
    """A convolution of videos (1, channels, frames, rows, columns) that sees the frames before, and none after."""
    columns = conv.dilation[2] * (conv.kernel_size[2] - 1) // 2
    num_frames = conv.dilation[0] * (conv.kernel_size[0] - 1)
    num_rows = reach(conv)

    def convolve(place: int, framed: torch.Tensor) -> torch.Tensor:
        if num_frames:
            memory.recall(conv, place, framed, num_frames)
        if canvas.writers is not None and _has_taps(conv) and framed.dtype == torch.float32:
            return _in_taps(framed, conv, canvas.writers, columns=columns)
        return functional.conv3d(
            framed, conv.weight, conv.bias, padding=(0, 0, columns), dilation=conv.dilation
        )

    lay_out = partial(
        _laid_out, num_rows=num_rows, before=before, num_frames=num_frames, writers=canvas.writers
    )
    return canvas.reaching(layer, num_rows, lay_out, convolve, num_frames=num_frames)


def _has_taps(conv: nn.Conv3d) -> bool:
    return conv.kernel_size[0] == 3 and conv.bias is not None


def _in_taps(framed: torch.Tensor, conv: nn.Conv3d, writers: Writers, *, columns: int) -> torch.Tensor:
    """The same by three convolutions of pictures, which in float32 take a GPU two thirds of the time."""
    frames = framed.squeeze(0).transpose(0, 1)
    step = conv.dilation[0]
    num_frames = len(frames) - 2 * step
    layout = layout_of(frames)
    first, second, third = (
        functional.conv2d(
            frames[tap * step : tap * step + num_frames],
            weight.contiguous(memory_format=layout),
            padding=(0, columns),
            dilation=conv.dilation[1:],
        )
        for tap, weight in enumerate(conv.weight.unbind(2))
    )
    writers.add_taps(first, second, third, conv.bias)
    return first.transpose(0, 1).unsqueeze(0)


def group_norm(canvas: Canvas, layer: Here, norm: nn.GroupNorm) -> Pointwise:
    """What normalizes rows of the layer over the whole picture, by the moments of each band, merged in the order of the
    bands; of one band that nobody compiles, as ever."""
    if canvas.num_bands == 1 and canvas.writers is None:
        return norm
    mean, variance = _merged(canvas, layer, norm.num_groups)
    per_group = norm.num_channels // norm.num_groups
    mean, variance = mean.repeat_interleave(per_group), variance.repeat_interleave(per_group)
    return OverGroups(mean, variance, norm.weight.to(mean.dtype), norm.bias.to(mean.dtype), norm.eps)


def _merged(canvas: Canvas, layer: Here, num_groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each group over the whole picture (Chan, Golub and LeVeque, 1983): of channels and bands,
    each with as many values as its band has rows."""
    moments = canvas.gather_one_each(canvas.each(_of_channels, layer))
    share = _shares(canvas.rows_of_bands, moments.dtype, moments.device)
    means, variances = moments.unflatten(-1, (num_groups, -1)).unbind(dim=1)
    mean = (share * means).sum(dim=0).mean(dim=-1)
    apart = (means - mean[:, None]) ** 2
    return mean, (share * (variances + apart)).sum(dim=0).mean(dim=-1)


@lru_cache(maxsize=256)
def _shares(rows: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What part of the picture each band is, (bands, 1, 1)."""
    counts = torch.tensor(rows, dtype=dtype)
    return (counts / counts.sum()).to(device)[:, None, None]


def _of_channels(band: torch.Tensor) -> torch.Tensor:
    """Mean and variance of each channel of a picture, (2, channels), in fp32 at least."""
    if band.is_cuda:
        # Reads half precision as it is; the other way would write all of it in fp32 first.
        mean, inverse_deviation = torch.batch_norm_stats(band, 0.0)
        return torch.stack([mean, inverse_deviation**-2])
    values = band.flatten(2).squeeze(0).to(torch.promote_types(band.dtype, torch.float32))
    variance, mean = torch.var_mean(values, dim=1, correction=0)
    return torch.stack([mean, variance])


def pixel_norm(canvas: Canvas, norm: Any) -> Pointwise:
    """What normalizes each pixel over its channels, as the module of a video's decoder does it; on a GPU in one pass
    instead of six."""
    if isinstance(norm.bias, torch.Tensor):
        return norm
    over_channels = OverChannels(norm.gamma)
    if canvas.writers is not None:
        return over_channels
    return lambda rows: over_channels(rows) if rows.is_cuda else norm(rows)


def attention(canvas: Canvas, layer: Here, queries: Here, others: Here, project: Projection) -> Here:
    """Attention of each band's tokens to those of the whole picture, projected and added to the `layer`.

    `queries` are (batch, heads, tokens, depth), `others` their keys and values, (2, batch, heads, tokens, depth).
    `project` is given what is attended and the band that it belongs to.
    """
    keys, values = canvas.gather(others, dim=-2)

    def attend(band: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return project(_attended(own, keys, values), band)

    return canvas.each(attend, layer, queries)


def _attended(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if queries.is_cuda and queries.shape[-1] > FUSED_DEPTH:
        return attended_in_parts(queries, keys, values, num_bytes=WEIGHTS_BYTES)
    return functional.scaled_dot_product_attention(queries, keys, values)


def attended_in_parts(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, num_bytes: int
) -> torch.Tensor:
    """Attention (batch, heads, tokens, depth) by matrix products, with weights of `num_bytes` at once in fp32. The few
    queries of a band leave most of a GPU idle in kernels that share out queries alone."""
    *outer, num_keys, depth = keys.shape
    across = keys.reshape(-1, num_keys, depth).transpose(1, 2)
    flat, along = queries.flatten(0, 1), values.flatten(0, 1)
    wide = {"out_dtype": torch.float32} if queries.is_cuda and queries.dtype != torch.float32 else {}
    num_queries = max(1, num_bytes // (4 * num_keys * flat.shape[0]))
    parts = []
    for part in flat.split(num_queries, dim=1):
        weights = torch.bmm(part, across, **wide).mul_(depth**-0.5).softmax(dim=-1)
        parts.append(torch.bmm(weights.to(along.dtype), along))
    return torch.cat(parts, dim=1).unflatten(0, tuple(outer))
