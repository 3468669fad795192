"""The decoders of diffusers' autoencoders over the bands of a picture.

Each is written anew here from its layers, and its modules only lend their weights: nothing of a decode stays on a
module, so several may run at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from epe.transport.exchange import Exchange
from epe.vae.bands import Bands, bands_of
from epe.vae.canvas import Canvas, Here
from epe.vae.layers import (
    Memory,
    attention,
    causal_convolution,
    convolution,
    group_norm,
    lay_out_weights,
    pixel_norm,
)
from epe.vae.seam import kind_of, why_not_modules
from epe.vae.writers import Writers

# Whole frames at a time: (canvas, the model, latents after its first convolution of single pixels).
Decoder = Callable[[Canvas, Any, torch.Tensor], torch.Tensor | None]


def why_not(vae: Any) -> str | None:
    """What stands in the way of decoding with this model in bands; None if nothing does."""
    if getattr(vae, "use_tiling", False):
        return "diffusers' tiling is switched on, which is another picture"
    return why_not_modules(vae)


def decode(
    vae: Any,
    latents: torch.Tensor,
    exchange: Exchange,
    *,
    bands: Bands | None = None,
    home: torch.device | None = None,
    writers: Writers | None = None,
) -> torch.Tensor | None:
    """What `vae.decode` makes of `latents` (1, channels, [frames,] rows, columns), which every rank of the lane has: on
    its first rank, None on the others.

    `home` is where bands rest while they are not at work, by default the device. Compiled `writers` round otherwise,
    and give the same bits at every width too. Raises `ValueError` where `why_not` has a reason.
    """
    if reason := why_not(vae):
        raise ValueError(reason)
    bands = bands or bands_of(latents.shape[-2])
    busy = (
        exchange.narrow(tuple(range(min(exchange.width, len(bands)))))
        if exchange.position < len(bands)
        else None
    )
    if busy is None:
        return None
    lay_out_weights(vae.decoder)
    canvas = Canvas(bands, busy, device=latents.device, home=home, writers=writers)
    return _DECODERS[kind_of(vae)](canvas, vae, latents)


# -- pictures: AutoencoderKL, AutoencoderKLFlux2 -------------------------------------------------------------


def _decode_picture(canvas: Canvas, vae: Any, latents: torch.Tensor) -> torch.Tensor | None:
    decoder, layer = vae.decoder, canvas.spread(latents)
    if vae.post_quant_conv is not None:
        layer = convolution(canvas, layer, vae.post_quant_conv)
    layer = convolution(canvas, layer, decoder.conv_in)
    first, *others = decoder.mid_block.resnets
    layer = _residual(canvas, layer, first)
    for middle, block in zip(decoder.mid_block.attentions, others, strict=True):
        layer = _residual(canvas, layer if middle is None else _attend(canvas, layer, middle), block)
    for block in decoder.up_blocks:
        for residual in block.resnets:
            layer = _residual(canvas, layer, residual)
        for upsampler in block.upsamplers or ():
            layer = convolution(canvas, layer, upsampler.conv, before=[_twice], scale=2)
    activate = (group_norm(canvas, layer, decoder.conv_norm_out), decoder.conv_act)
    return canvas.collect(convolution(canvas, layer, decoder.conv_out, before=activate))


def _residual(canvas: Canvas, layer: Here, block: Any) -> Here:
    first = (group_norm(canvas, layer, block.norm1), block.nonlinearity)
    inner = convolution(canvas, layer, block.conv1, before=first)
    second = (group_norm(canvas, inner, block.norm2), block.nonlinearity)
    inner = convolution(canvas, inner, block.conv2, before=second)
    if block.conv_shortcut is not None:
        layer = convolution(canvas, layer, block.conv_shortcut)
    # Divided by one, values stay what they are.
    if block.output_scale_factor == 1.0:
        return canvas.each(torch.add, layer, inner)
    return canvas.each(lambda one, other: (one + other) / block.output_scale_factor, layer, inner)


def _attend(canvas: Canvas, layer: Here, block: Any) -> Here:
    normalize = group_norm(canvas, layer, block.group_norm)
    normed = canvas.each(lambda band: _tokens(normalize(band)), layer)
    heads = partial(torch.Tensor.unflatten, dim=-1, sizes=(block.heads, -1))

    def queries(tokens: torch.Tensor) -> torch.Tensor:
        return heads(block.to_q(tokens)).transpose(1, 2)

    def keys_and_values(tokens: torch.Tensor) -> torch.Tensor:
        return torch.stack([heads(block.to_k(tokens)), heads(block.to_v(tokens))]).transpose(2, 3)

    def project(attended: torch.Tensor, band: torch.Tensor) -> torch.Tensor:
        tokens = block.to_out[0](attended.transpose(1, 2).flatten(2))
        picture = tokens.transpose(-1, -2).reshape(band.shape)
        if block.residual_connection:
            picture = picture + band
        return picture / block.rescale_output_factor

    return attention(
        canvas, layer, canvas.each(queries, normed), canvas.each(keys_and_values, normed), project
    )


def _tokens(picture: torch.Tensor) -> torch.Tensor:
    """(1, channels, rows, columns) as (1, rows x columns, channels)."""
    return picture.flatten(2).transpose(1, 2)


def _twice(picture: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(picture, scale_factor=2.0, mode="nearest")


# -- videos, frame after frame: AutoencoderKLWan, AutoencoderKLQwenImage -------------------------------------


def _decode_video(canvas: Canvas, vae: Any, latents: torch.Tensor) -> torch.Tensor | None:
    memory = Memory(canvas.home)
    latents = functional.conv3d(latents, vae.post_quant_conv.weight, vae.post_quant_conv.bias)
    done = []
    for number, latent in enumerate(latents.split(1, dim=2), start=1):
        memory.last = number == latents.shape[2]
        frames = _decode_frame(canvas, vae.decoder, latent, memory, is_first=number == 1)
        done += [] if frames is None else [frames]
    return torch.cat(done, dim=2).clamp_(-1.0, 1.0) if done else None


def _decode_frame(
    canvas: Canvas, decoder: Any, frame: torch.Tensor, memory: Memory, *, is_first: bool
) -> torch.Tensor | None:
    """One latent frame, which is one frame if it is the first and several else."""
    causal = partial(causal_convolution, canvas, memory=memory)
    layer = causal(canvas.spread(frame), decoder.conv_in)
    first, *others = decoder.mid_block.resnets
    layer = _causal_residual(canvas, layer, first, memory)
    for middle, block in zip(decoder.mid_block.attentions, others, strict=True):
        layer = layer if middle is None else _attend_in_frames(canvas, layer, middle)
        layer = _causal_residual(canvas, layer, block, memory)
    for block in decoder.up_blocks:
        for residual in block.resnets:
            layer = _causal_residual(canvas, layer, residual, memory)
        for upsampler in block.upsamplers or ():
            layer = _upsample(canvas, layer, upsampler, memory, is_first=is_first)
    activate = (pixel_norm(canvas, decoder.norm_out), decoder.nonlinearity)
    return canvas.collect(causal(layer, decoder.conv_out, before=activate))


def _causal_residual(canvas: Canvas, layer: Here, block: Any, memory: Memory) -> Here:
    shortcut = canvas.each(block.conv_shortcut, layer)
    first, second = (
        (pixel_norm(canvas, block.norm1), block.nonlinearity),
        (pixel_norm(canvas, block.norm2), block.nonlinearity),
    )
    inner = causal_convolution(canvas, layer, block.conv1, memory, before=first)
    inner = causal_convolution(canvas, inner, block.conv2, memory, before=second)
    return canvas.each(torch.add, inner, shortcut)


def _upsample(canvas: Canvas, layer: Here, block: Any, memory: Memory, *, is_first: bool) -> Here:
    """Twice the rows and columns, and of all frames but the first twice as many where the block does that."""
    if block.mode == "upsample3d" and not is_first:
        layer = canvas.each(_interleave, causal_convolution(canvas, layer, block.time_conv, memory))
    upsample, conv = block.resample
    num_frames = layer[0].shape[2]
    pictures = canvas.each(_as_pictures, layer)
    pictures = convolution(canvas, pictures, conv, before=[upsample], scale=2)
    return canvas.each(lambda band: _as_video(band, num_frames), pictures)


def _attend_in_frames(canvas: Canvas, layer: Here, block: Any) -> Here:
    def tokens(band: torch.Tensor) -> torch.Tensor:
        """(3, frames, 1, rows x columns, channels): queries, keys and values."""
        mixed = block.to_qkv(pixel_norm(canvas, block.norm)(_as_pictures(band))).flatten(2).transpose(1, 2)
        return torch.stack(mixed.unsqueeze(1).chunk(3, dim=-1))

    def project(attended: torch.Tensor, band: torch.Tensor) -> torch.Tensor:
        pictures = attended.squeeze(1).transpose(1, 2).reshape(-1, *_as_pictures(band).shape[1:])
        return _as_video(block.proj(pictures), band.shape[2]) + band

    three = canvas.each(tokens, layer)
    queries = canvas.each(lambda band: band[0].contiguous(), three)
    return attention(canvas, layer, queries, canvas.each(lambda band: band[1:].contiguous(), three), project)


def _interleave(band: torch.Tensor) -> torch.Tensor:
    """(1, 2 x channels, frames, rows, columns): the first half of the channels is each even frame, the second each odd
    one."""
    even, odd = band.chunk(2, dim=1)
    return torch.stack([even, odd], dim=3).flatten(2, 3)


def _as_pictures(band: torch.Tensor) -> torch.Tensor:
    """(1, channels, frames, rows, columns) as (frames, channels, rows, columns)."""
    return band.transpose(1, 2).flatten(0, 1)


def _as_video(pictures: torch.Tensor, num_frames: int) -> torch.Tensor:
    return pictures.unflatten(0, (-1, num_frames)).transpose(1, 2)


_DECODERS: dict[str, Decoder] = {
    "AutoencoderKL": _decode_picture,
    "AutoencoderKLFlux2": _decode_picture,
    "AutoencoderKLQwenImage": _decode_video,
    "AutoencoderKLWan": _decode_video,
}
