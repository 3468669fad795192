"""Qwen-Image's rotary embedding in real numbers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel
from diffusers.models.transformers.transformer_qwenimage import QwenDoubleStreamAttnProcessor2_0

from epe.models.rotation import give_real_tables, rotated
from epe.parallel.seam import replace_calls


def rotate_in_real_numbers(transformer: QwenImageTransformer2DModel) -> None:
    """Let all blocks of a model rotate in real numbers, which rounds otherwise."""
    # One class for all: who compiles the blocks sees one kind.
    processor = replace_calls(QwenDoubleStreamAttnProcessor2_0(), {"apply_rotary_emb_qwen": _rotated})
    for block in transformer.transformer_blocks:
        block.attn.processor = copy.copy(processor)
        give_real_tables(block, "image_rotary_emb", _both)


def _rotated(features: torch.Tensor, table: torch.Tensor, use_real: bool = False) -> torch.Tensor:
    """As diffusers' function is called, with a table of (rows, head dim / 2, 2)."""
    return rotated(features, table.unsqueeze(1))


def _both(tables: tuple[torch.Tensor, torch.Tensor]) -> tuple[Any, ...]:
    """Of picture and text rows."""
    return tuple(map(torch.view_as_real, tables))
