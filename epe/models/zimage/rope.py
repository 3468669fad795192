"""Z-Image's rotary embedding in real numbers: a compiler makes one pass over memory of it, with the norm before it.

As diffusers has it, in complex numbers, compilers leave it as it is: four passes in float32 for queries and keys each.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from diffusers import ZImageTransformer2DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_z_image import (
    ZImageTransformerBlock,
    ZSingleStreamAttnProcessor,
)
from torch import nn

from epe.parallel.plan import argument_index

_TABLE = "freqs_cis"


class RealRotation(ZSingleStreamAttnProcessor):
    """Attention of a block whose rotary table has real numbers: (batch, rows, head dim / 2, 2), cosines and sines."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        freqs_cis: torch.Tensor | None = None,
    ) -> torch.Tensor:
        query, key, value = (
            layer(hidden_states).unflatten(-1, (attn.heads, -1))
            for layer in (attn.to_q, attn.to_k, attn.to_v)
        )
        if attn.norm_q is not None:
            query = attn.norm_q(query)
        if attn.norm_k is not None:
            key = attn.norm_k(key)
        if freqs_cis is not None:
            query, key = _rotated(query, freqs_cis), _rotated(key, freqs_cis)
        if attention_mask is not None and attention_mask.ndim == 2:
            attention_mask = attention_mask[:, None, None, :]
        attended = dispatch_attention_fn(
            query,
            key,
            value,
            attn_mask=attention_mask,
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
        )
        output = attended.flatten(2, 3).to(query.dtype)
        for layer in attn.to_out:
            output = layer(output)
        return output


def rotate_in_real_numbers(transformer: ZImageTransformer2DModel) -> None:
    """Let all blocks of a model rotate in real numbers, which rounds otherwise."""
    for block in transformer.modules():
        if isinstance(block, ZImageTransformerBlock):
            block.attention.processor = RealRotation()
            hook = partial(_in_real_numbers, index=argument_index(block, _TABLE))
            block.register_forward_pre_hook(hook, with_kwargs=True)


def _rotated(features: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """(batch, rows, heads, head dim), each pair of features turned by its angle, in float32."""
    first, second = features.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = table.unsqueeze(2).unbind(-1)
    turned = torch.stack((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
    return turned.flatten(-2).type_as(features)


def _in_real_numbers(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, index: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """After the lane has taken its rows of the table, so that all hooks before this one see diffusers' own."""
    if _TABLE in kwargs:
        return args, {**kwargs, _TABLE: torch.view_as_real(kwargs[_TABLE])}
    return (*args[:index], torch.view_as_real(args[index]), *args[index + 1 :]), kwargs
