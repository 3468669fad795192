"""Blocks of a model compiled one by one, with attention left as it is: fewer passes over memory between the matrices.

A compiled block knows nothing of lanes: it calls attention by a number, and what stands there asks for the lane of the
moment. So a change of lane compiles nothing anew.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from epe.errors import StartFailed


class Attend(Protocol):
    """Attention as diffusers' processors call it: (batch, rows, heads, head dim) each, as is the result."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


# What compiled blocks call, by number. It grows by one or two with each model that is loaded.
_PLACES: list[Attend] = []


def new_place(attend: Attend) -> int:
    """The number by which compiled code calls `attend`."""
    _PLACES.append(attend)
    return len(_PLACES) - 1


@torch.library.custom_op("epe::attend", mutates_args=())
def attend_at(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, place: int
) -> torch.Tensor:
    """Attention by the number of its place; its result is contiguous, as compiled code was told."""
    return _PLACES[place](query, key, value, attn_mask=mask).contiguous()


@attend_at.register_fake
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, place: int
) -> torch.Tensor:
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


def compile_blocks(model: nn.Module, *, backend: str = "inductor") -> int:
    """Compile the blocks that repeat in a diffusers model, once for all sizes; gives their number.

    What is compiled is their `forward`: hooks, which may ask for the lane, stay outside. Raises `StartFailed` for a
    model that does not name its blocks.
    """
    names = set(getattr(model, "_repeated_blocks", None) or ())
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if not blocks:
        raise StartFailed(f"{type(model).__name__} names no blocks that repeat; it cannot be compiled")
    for block in blocks:
        block.forward = torch.compile(block.forward, fullgraph=True, dynamic=True, backend=backend)
    return len(blocks)
