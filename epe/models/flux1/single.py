"""FLUX.1's single blocks without the tensor that joins what attention and the feed-forward layer give."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from diffusers.models.transformers.transformer_flux import FluxSingleTransformerBlock
from torch.nn import functional

from epe.parallel.activations import activated


class ApartBlock(FluxSingleTransformerBlock):
    """The product with both is the sum of two products, and joining them is a pass over five times the features."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        joint_attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_text_rows = encoder_hidden_states.shape[1]
        rows = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        normed, gate = self.norm(rows, emb=temb)
        inner = activated(normed, self.proj_mlp)
        attended = self.attn(
            hidden_states=normed, image_rotary_emb=image_rotary_emb, **(joint_attention_kwargs or {})
        )
        weight, depth = self.proj_out.weight, attended.shape[-1]
        output = functional.linear(attended, weight[:, :depth])
        output = output + functional.linear(inner, weight[:, depth:], self.proj_out.bias)
        rows = rows + gate.unsqueeze(1) * output
        return rows[:, :num_text_rows], rows[:, num_text_rows:]


def keep_apart(transformer: FluxTransformer2DModel) -> None:
    """Let all single blocks of a model do so, which rounds otherwise."""
    for block in transformer.single_transformer_blocks:
        block.__class__ = ApartBlock
