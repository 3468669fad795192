"""Captions in the lengths that the model pads them to, with masks that say which rows are padding.

The model counts the padding of each caption itself. A captured pass would have that count for ever, so every number of
tokens would be captured anew; with masks all captions of one padded length share a pass. The bits are the model's own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from diffusers.models.transformers.transformer_z_image import SEQ_MULTI_OF
from torch import nn

MASKS = "caption_masks"


class Captions:
    """Installed once on a transformer, which then takes `caption_masks` beside padded captions. Not thread-safe."""

    def __init__(self, transformer: nn.Module) -> None:
        self._masks: list[torch.Tensor] | None = None
        self._mask_of = lru_cache(maxsize=1024)(_mask)
        self._embed: Any = transformer.patchify_and_embed
        transformer.patchify_and_embed = self._embed_with_masks
        transformer.register_forward_pre_hook(self._take_masks, with_kwargs=True)

    def padded(self, caption: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(padded tokens, text width), the last token again and again as the model has it, and (padded tokens,), True
        where there is padding."""
        num_tokens = len(caption)
        mask = self._mask_of(num_tokens, caption.device)
        rest = caption[-1:].expand(len(mask) - num_tokens, -1)
        return torch.cat([caption, rest]), mask

    def _take_masks(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._masks = kwargs.get(MASKS)
        return args, {name: value for name, value in kwargs.items() if name != MASKS}

    def _embed_with_masks(self, *args: Any) -> tuple[Any, ...]:
        """What the model makes of pictures and captions; the masks of captions come last."""
        *parts, own_masks = self._embed(*args)
        return *parts, own_masks if self._masks is None else self._masks


def _mask(num_tokens: int, device: torch.device) -> torch.Tensor:
    padded = -(-num_tokens // SEQ_MULTI_OF) * SEQ_MULTI_OF
    return torch.arange(padded, device=device) >= num_tokens
