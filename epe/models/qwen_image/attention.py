"""Qwen-Image's attention as compiled blocks have it: rotations in real numbers, and one product for the text."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_qwenimage import QwenDoubleStreamAttnProcessor2_0

from epe.models.joining import JoinedProduct
from epe.models.rotation import give_real_tables
from epe.parallel.rotating import normed_and_rotated


class FastAttention(QwenDoubleStreamAttnProcessor2_0):
    """Attention of one module, whose rotary tables are of real numbers: (rows, head dim / 2, 2).

    Queries, keys and values of the text are one product: its few rows leave most of a GPU idle in three.
    """

    def __init__(self, attn: Any) -> None:
        super().__init__()
        self.of_text = JoinedProduct((attn.add_q_proj, attn.add_k_proj, attn.add_v_proj))

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
        text = self.of_text(encoder_hidden_states)
        image = [layer(hidden_states) for layer in (attn.to_q, attn.to_k, attn.to_v)]
        image_query, image_key, image_value = (each.unflatten(-1, (-1, head_dim)) for each in image)
        text_query, text_key, text_value = (each.unflatten(-1, (-1, head_dim)) for each in text)
        image_table, text_table = image_rotary_emb
        query, key = (
            normed_and_rotated(
                (of_text, of_image),
                (text_norm.weight, image_norm.weight),
                (text_table, image_table),
                image_norm.eps,
            )
            for of_text, of_image, text_norm, image_norm in (
                (text_query, image_query, attn.norm_added_q, attn.norm_q),
                (text_key, image_key, attn.norm_added_k, attn.norm_k),
            )
        )
        attended = dispatch_attention_fn(
            query,
            key,
            torch.cat((text_value, image_value), dim=1),
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


def _real(tables: tuple[torch.Tensor, torch.Tensor]) -> tuple[Any, ...]:
    """Of picture and text rows."""
    return tuple(map(torch.view_as_real, tables))
