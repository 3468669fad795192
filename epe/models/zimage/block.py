"""Z-Image's blocks as compiled ones are: what they make of the noise level is there before them.

A compiler would have each row of a picture work out the tanh of its gates anew: kernels that memory needs 22 and 30 µs
for took 36 and 68 on an H200.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from diffusers import ZImageTransformer2DModel
from diffusers.models.transformers.transformer_z_image import ZImageTransformerBlock
from torch import nn

from epe.models.joining import JoinedProduct
from epe.parallel.plan import argument_index

LEVEL = "adaln_input"


class ModulatedBlock(ZImageTransformerBlock):
    """Gets its scales and gates in place of the noise level: (4, batch, 1, features)."""

    def forward(
        self,
        x: torch.Tensor,
        attn_mask: torch.Tensor,
        freqs_cis: torch.Tensor,
        adaln_input: torch.Tensor | None = None,
        noise_mask: None = None,  # As diffusers calls it; of edited pictures alone.
        adaln_noisy: None = None,
        adaln_clean: None = None,
    ) -> torch.Tensor:
        assert adaln_input is not None
        scale, gate, inner_scale, inner_gate = (adaln_input[place] for place in range(4))
        attended = self.attention(
            self.attention_norm1(x) * scale, attention_mask=attn_mask, freqs_cis=freqs_cis
        )
        x = x + gate * self.attention_norm2(attended)
        return x + inner_gate * self.ffn_norm2(self.feed_forward(self.ffn_norm1(x) * inner_scale))


class ReadyModulations:
    """What the blocks make of a noise level, by one product before the first of them. Not thread-safe."""

    def __init__(self, blocks: list[Any]) -> None:
        # Every rank makes all of them, so that no lane shares their rows.
        self._product = JoinedProduct([block.adaLN_modulation[0] for block in blocks], shares_rows=False)
        self._ready: torch.Tensor | None = None
        self._index = argument_index(blocks[0], LEVEL)
        for number, block in enumerate(blocks):
            block.register_forward_pre_hook(partial(self._hand, number=number), with_kwargs=True)

    def _hand(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, number: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if number == 0:
            self._ready = self._of(args[self._index])
        assert self._ready is not None
        own = self._ready[number]
        if number + 1 == len(self._ready):
            self._ready = None
        return (*args[: self._index], own, *args[self._index + 1 :]), kwargs

    def _of(self, level: torch.Tensor) -> torch.Tensor:
        """(blocks, 4, batch, 1, features) of (batch, width): scale and gate of attention, and of what follows it."""
        halves = torch.stack(self._product(level)).unflatten(-1, (2, 2, -1))
        ready = torch.stack((1 + halves[..., 0, :], halves[..., 1, :].tanh()), dim=-2)
        return ready.flatten(2, 3).transpose(1, 2).unsqueeze(-2).contiguous()


def modulate_beforehand(transformer: ZImageTransformer2DModel) -> None:
    """Let all blocks of a model do so that know of the noise level, which rounds otherwise."""
    blocks = [*transformer.noise_refiner, *transformer.layers]
    ReadyModulations(blocks)
    for block in blocks:
        block.__class__ = ModulatedBlock
