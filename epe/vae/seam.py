"""Which decoders are known, down to each of their layers: what is not known is never decoded in bands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from epe.vae.bands import MIN_ROWS
from epe.vae.layers import reach

# The kinds of modules in each decoder. One of another kind, or set up in another way, stands in the way.
_PICTURE = {
    "Decoder",
    "UNetMidBlock2D",
    "UpDecoderBlock2D",
    "ResnetBlock2D",
    "Attention",
    "Upsample2D",
    "Conv2d",
    "GroupNorm",
    "Linear",
    "SiLU",
    "Dropout",
    "ModuleList",
}


def _video(prefix: str) -> set[str]:
    blocks = ("Decoder3d", "MidBlock", "UpBlock", "ResidualBlock", "AttentionBlock", "Resample", "Upsample")
    own = {prefix + name for name in (*blocks, "CausalConv3d", "RMS_norm")}
    return own | {"Conv2d", "SiLU", "Dropout", "Identity", "ModuleList", "Sequential"}


_KNOWN = {
    "AutoencoderKL": _PICTURE,
    "AutoencoderKLFlux2": _PICTURE,
    "AutoencoderKLQwenImage": _video("QwenImage"),
    "AutoencoderKLWan": _video("Wan"),
}


def kind_of(vae: Any) -> str:
    """The name by which a model's decoder is known."""
    return type(vae).__name__


def why_not_modules(vae: Any) -> str | None:
    """The first thing in the decoder that this version does not know; None if there is none."""
    known = _KNOWN.get(kind_of(vae))
    if known is None:
        return f"{kind_of(vae)} is not among the decoders that are known: {', '.join(_KNOWN)}"
    return next(_strange(vae, known), None)


def _strange(vae: Any, known: set[str]) -> Iterator[str]:
    for name, module in vae.decoder.named_modules():
        kind = type(module).__name__
        if kind not in known:
            yield f"decoder.{name} is a {kind}, which is not known"
        elif isinstance(module, nn.Conv2d | nn.Conv3d) and not _is_plain(module):
            yield f"decoder.{name} is a convolution with a stride, groups, an even kernel or no zeros beyond edges"
        elif isinstance(module, nn.Conv2d | nn.Conv3d) and reach(module) > MIN_ROWS:
            yield f"decoder.{name} reaches {reach(module)} rows further, and a band may have {MIN_ROWS}"
        elif kind == "ResnetBlock2D" and not _is_plain_residual(module):
            yield f"decoder.{name} is a residual block that depends on time or resamples"
        elif kind == "Attention" and not _is_plain_attention(module):
            yield f"decoder.{name} is attention with a mask, another norm or no group norm"
        elif kind == "Upsample2D" and not (module.use_conv and module.interpolate and module.norm is None):
            yield f"decoder.{name} upsamples in another way than by rows twice and a convolution"
    if kind_of(vae) == "AutoencoderKLWan" and vae.config.patch_size is not None:
        yield "its frames are cut into patches"


def _is_plain(conv: Any) -> bool:
    """Of odd extent, centred in rows and columns, one output for each input, zeros beyond the edges."""
    centred = all(
        size % 2 == 1 and _padding(conv)[place] == conv.dilation[place] * (size // 2)
        for place, size in list(enumerate(conv.kernel_size))[-2:]
    )
    return centred and set(conv.stride) == {1} and conv.groups == 1 and conv.padding_mode == "zeros"


def _padding(conv: Any) -> tuple[int, ...]:
    """A causal convolution keeps its padding to itself, that of the columns first."""
    own = getattr(conv, "_padding", None)
    return conv.padding if own is None else (own[4] // 2, own[2], own[0])


def _is_plain_residual(block: Any) -> bool:
    return (
        block.time_emb_proj is None
        and block.time_embedding_norm in ("default", "group")
        and block.upsample is None
        and block.downsample is None
    )


def _is_plain_attention(block: Any) -> bool:
    return (
        block.spatial_norm is None
        and block.group_norm is not None
        and block.norm_q is None
        and block.norm_k is None
        and not block.norm_cross
        and type(block.processor).__name__ == "AttnProcessor2_0"
    )
