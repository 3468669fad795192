"""Wan's self-attention as compiled blocks have it: queries and keys are normed and rotated by one kernel."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import WanTransformer3DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch import nn

from epe.models.rotation import Tables, give_one_table
from epe.parallel.rotating import normed_and_rotated


class FastAttention(WanAttnProcessor):
    """Attention of all rows to each other, whose heads are normed together."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: None = None,
        attention_mask: None = None,  # As diffusers calls it; never given.
        rotary_emb: Tables | None = None,
    ) -> torch.Tensor:
        assert rotary_emb is not None
        table = rotary_emb[0][0, :, 0]
        query, key, value = (
            layer(hidden_states).unflatten(-1, (attn.heads, -1))
            for layer in (attn.to_q, attn.to_k, attn.to_v)
        )
        query, key = (
            normed_and_rotated((each,), (norm.weight,), (table,), norm.eps)
            for each, norm in ((query, attn.norm_q), (key, attn.norm_k))
        )
        attended = dispatch_attention_fn(
            query, key, value, backend=self._attention_backend, parallel_config=self._parallel_config
        )
        rows = attended.flatten(2, 3).type_as(query)
        output: torch.Tensor = attn.to_out[1](attn.to_out[0](rows))
        return output


def make_attention_fast(transformer: WanTransformer3DModel) -> None:
    """Let all blocks of a model attend so, which rounds otherwise. Planes, which norm what they have apart, stay as
    they are."""
    attentions = [block.attn1 for block in transformer.blocks]
    if not all(type(norm) is nn.RMSNorm for attn in attentions for norm in (attn.norm_q, attn.norm_k)):
        return
    for attn in attentions:
        attn.processor = FastAttention()
    give_one_table(transformer.rope)
