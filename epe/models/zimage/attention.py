"""Z-Image's attention as compiled blocks have it: rotations in real numbers, and one product before them."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ZImageTransformer2DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_z_image import (
    ZImageTransformerBlock,
    ZSingleStreamAttnProcessor,
)

from epe.models.joining import JoinedProduct
from epe.models.rotation import give_real_tables
from epe.parallel.rotating import normed_and_rotated


class FastAttention(ZSingleStreamAttnProcessor):
    """Attention of one module, whose rotary table has real numbers: (batch, rows, head dim / 2, 2), cosines and sines.

    Queries, keys and values are one product.
    """

    def __init__(self, attn: Any) -> None:
        super().__init__()
        self.of_rows = JoinedProduct((attn.to_q, attn.to_k, attn.to_v))

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        freqs_cis: torch.Tensor | None = None,
    ) -> torch.Tensor:
        query, key, value = (each.unflatten(-1, (attn.heads, -1)) for each in self.of_rows(hidden_states))
        assert freqs_cis is not None
        query, key = (
            normed_and_rotated((each,), (norm.weight,), (freqs_cis,), norm.eps)
            for each, norm in ((query, attn.norm_q), (key, attn.norm_k))
        )
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


def make_attention_fast(transformer: ZImageTransformer2DModel) -> None:
    """Let all blocks of a model attend so, which rounds otherwise."""
    for block in transformer.modules():
        if isinstance(block, ZImageTransformerBlock):
            block.attention.processor = FastAttention(block.attention)
            give_real_tables(block, "freqs_cis")
