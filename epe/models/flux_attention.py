"""Attention of FLUX.1 and FLUX.2 as compiled blocks have it: queries and keys are normed and rotated by one kernel."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_flux import FluxAttention, FluxAttnProcessor
from diffusers.models.transformers.transformer_flux2 import (
    Flux2Attention,
    Flux2ParallelSelfAttention,
    Flux2ParallelSelfAttnProcessor,
)
from torch import nn

from epe.models.rotation import Tables, give_one_table
from epe.parallel.rotating import normed_and_rotated


class FastAttention(FluxAttnProcessor):
    """Attention of both streams, of text and picture, or of one that has them joined."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Tables | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        assert image_rotary_emb is not None
        if encoder_hidden_states is None:
            query, key, value = _of_one(attn, hidden_states, image_rotary_emb[0])
        else:
            query, key, value = _of_both(attn, encoder_hidden_states, hidden_states, image_rotary_emb[0])
        attended = dispatch_attention_fn(
            query,
            key,
            value,
            attn_mask=attention_mask,
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
        )
        rows = attended.flatten(2, 3).to(query.dtype)
        if encoder_hidden_states is None:
            return rows
        num_text_rows = encoder_hidden_states.shape[1]
        output = attn.to_out[1](attn.to_out[0](rows[:, num_text_rows:].contiguous()))
        return output, attn.to_add_out(rows[:, :num_text_rows].contiguous())


class FastParallelAttention(Flux2ParallelSelfAttnProcessor):
    """Attention of FLUX.2's single blocks, whose products are also those of the feed-forward layer."""

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Tables | None = None,
    ) -> torch.Tensor:
        assert image_rotary_emb is not None
        table, inner = image_rotary_emb[0], attn.inner_dim
        query, key, value, gated = attn.to_qkv_mlp_proj(hidden_states).split(
            (inner, inner, inner, attn.mlp_hidden_dim * attn.mlp_mult_factor), dim=-1
        )
        query, key, value = (each.unflatten(-1, (-1, attn.head_dim)) for each in (query, key, value))
        query, key = (_turned(each, norm, table) for each, norm in ((query, attn.norm_q), (key, attn.norm_k)))
        attended = dispatch_attention_fn(
            query,
            key,
            value,
            attn_mask=attention_mask,
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
        )
        rows = attended.flatten(2, 3).to(query.dtype)
        output: torch.Tensor = attn.to_out(torch.cat((rows, attn.mlp_act_fn(gated)), dim=-1))
        return output


def _of_one(attn: Any, rows: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values."""
    query, key, value = _heads(attn, rows, attn.to_q, attn.to_k, attn.to_v)
    return _turned(query, attn.norm_q, table), _turned(key, attn.norm_k, table), value


def _of_both(
    attn: Any, text: torch.Tensor, picture: torch.Tensor, table: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values, those of the text first."""
    tables = table[: text.shape[1]], table[text.shape[1] :]
    text_query, text_key, text_value = _heads(attn, text, attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
    query, key, value = _heads(attn, picture, attn.to_q, attn.to_k, attn.to_v)
    query, key = (
        normed_and_rotated(parts, [norm.weight for norm in norms], tables, norms[0].eps)
        for parts, norms in (
            ((text_query, query), (attn.norm_added_q, attn.norm_q)),
            ((text_key, key), (attn.norm_added_k, attn.norm_k)),
        )
    )
    return query, key, torch.cat((text_value, value), dim=1)


def _heads(attn: Any, rows: torch.Tensor, *layers: nn.Linear) -> list[torch.Tensor]:
    """What layers make of rows: (batch, rows, heads, head dim) each."""
    return [layer(rows).unflatten(-1, (-1, attn.head_dim)) for layer in layers]


def _turned(rows: torch.Tensor, norm: nn.RMSNorm, table: torch.Tensor) -> torch.Tensor:
    return normed_and_rotated((rows,), (norm.weight,), (table,), norm.eps)


def make_attention_fast(transformer: nn.Module) -> None:
    """Let all blocks of a model attend so, which rounds otherwise."""
    for module in transformer.modules():
        if isinstance(module, FluxAttention | Flux2Attention):
            module.processor = FastAttention()
        elif isinstance(module, Flux2ParallelSelfAttention):
            module.processor = FastParallelAttention()
    give_one_table(transformer.pos_embed)
