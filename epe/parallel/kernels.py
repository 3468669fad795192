"""Which kernels attention runs on: found out at the start, since slower ones say nothing of themselves."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.utils.constants import DIFFUSERS_ATTN_BACKEND
from torch.nn.attention import SDPBackend

# Rows of a picture of 256 x 256 with a text.
_ROWS = 384


def attention_kernels(config: Any, *, device: torch.device, dtype: torch.dtype) -> str:
    """The name of those that torch takes for a model of this `config` on the device, or of diffusers' backend where
    somebody has chosen one."""
    if DIFFUSERS_ATTN_BACKEND != "native":
        return str(DIFFUSERS_ATTN_BACKEND)
    num_heads, depth = heads_of(config)
    query = torch.empty(1, num_heads, _ROWS, depth, device=device, dtype=dtype)
    return str(SDPBackend(torch._fused_sdp_choice(query, query, query)).name).lower()


def problem_with_kernels(kernels: str, *, capability: tuple[int, int] | None) -> str | None:
    """What is wrong with torch's choice for a GPU of this compute capability (None: a CPU)."""
    if capability is None or kernels in ("cudnn_attention", "overrideable"):
        return None
    if kernels == "math":
        return "no fused attention fits this GPU, type or head: steps take much longer and more memory"
    if kernels in ("flash_attention", "efficient_attention") and capability[0] in (9, 10):
        return "cuDNN's attention is faster on this GPU: is cuDNN missing, or is it switched off?"
    return None


def heads_of(config: Any) -> tuple[int, int]:
    """Number and width."""
    if "n_heads" in config:
        return config["n_heads"], config["dim"] // config["n_heads"]
    return config["num_attention_heads"], config["attention_head_dim"]
