"""Z-Image's feed-forward layers as compiled blocks have them."""

from __future__ import annotations

import torch
from diffusers import ZImageTransformer2DModel
from diffusers.models.transformers.transformer_z_image import FeedForward

from epe.models.joining import JoinedProduct


class JoinedFeedForward(FeedForward):
    """The gate and what it gates are one product."""

    gated: JoinedProduct

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.w2(self._forward_silu_gating(*self.gated(x)))
        return output


def join_gates(transformer: ZImageTransformer2DModel) -> None:
    """Let all blocks of a model do so, which rounds otherwise."""
    for module in transformer.modules():
        if type(module) is FeedForward:
            module.__class__ = JoinedFeedForward
            module.gated = JoinedProduct((module.w1, module.w3))
