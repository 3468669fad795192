"""Qwen-Image's attention as compiled blocks have it: rotations in real numbers, and one product for the text."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_qwenimage import QwenDoubleStreamAttnProcessor2_0
from torch import nn
from torch.nn import functional

from epe.models.rotation import give_real_tables, rotated


class FastAttention(QwenDoubleStreamAttnProcessor2_0):
    """Attention of one module, whose rotary tables are of real numbers: (rows, head dim / 2, 2).

    Queries, keys and values of the text are one product: its few rows leave most of a GPU idle in three. The module
    keeps its three layers, which are parts of the one.
    """

    def __init__(self, attn: Any) -> None:
        super().__init__()
        layers = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        self.weight, self.bias = (_joined(layers, name) for name in ("weight", "bias"))

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_hidden_states_mask: None = None,
        attention_mask: None = None,  # As diffusers calls it; never given.
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert encoder_hidden_states_mask is None, "a text has no padding"
        assert image_rotary_emb is not None
        num_text_rows, head_dim = encoder_hidden_states.shape[1], attn.inner_dim // attn.heads
        text = functional.linear(encoder_hidden_states, self.weight, self.bias).chunk(3, dim=-1)
        image = [layer(hidden_states) for layer in (attn.to_q, attn.to_k, attn.to_v)]
        image_query, image_key, image_value = (each.unflatten(-1, (-1, head_dim)) for each in image)
        text_query, text_key, text_value = (each.unflatten(-1, (-1, head_dim)) for each in text)
        image_table, text_table = (table.unsqueeze(1) for table in image_rotary_emb)
        query = _both(
            rotated(attn.norm_added_q(text_query), text_table), rotated(attn.norm_q(image_query), image_table)
        )
        key = _both(
            rotated(attn.norm_added_k(text_key), text_table), rotated(attn.norm_k(image_key), image_table)
        )
        attended = dispatch_attention_fn(
            query,
            key,
            _both(text_value, image_value),
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
        )
        rows = attended.flatten(2, 3).to(query.dtype)
        output = attn.to_out[0](rows[:, num_text_rows:].contiguous())
        return output, attn.to_add_out(rows[:, :num_text_rows].contiguous())


def make_attention_fast(transformer: QwenImageTransformer2DModel) -> None:
    """Let all blocks of a model attend so, which rounds otherwise."""
    for block in transformer.transformer_blocks:
        block.attn.processor = FastAttention(block.attn)
        give_real_tables(block, "image_rotary_emb", _real)


def _joined(layers: tuple[nn.Linear, ...], name: str) -> nn.Parameter:
    """The weights (or biases) of layers as one, whose parts become theirs, so that nothing is there twice."""
    parts = [getattr(layer, name).detach() for layer in layers]
    # A parameter, since compilers leave the sizes of all other tensors open.
    whole = nn.Parameter(torch.cat(parts), requires_grad=False)
    for layer, part in zip(layers, whole.split([len(part) for part in parts]), strict=True):
        setattr(layer, name, nn.Parameter(part, requires_grad=False))
    return whole


def _both(text: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """Text rows come first."""
    return torch.cat((text, image), dim=1)


def _real(tables: tuple[torch.Tensor, torch.Tensor]) -> tuple[Any, ...]:
    """Of picture and text rows."""
    return tuple(map(torch.view_as_real, tables))
