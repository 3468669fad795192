"""Blocks of a model compiled one by one, with attention left as it is: fewer passes over memory between the matrices.

A compiled block knows nothing of lanes: it calls attention by a number, and what stands there asks for the lane of the
moment. So a change of lane compiles nothing anew.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from epe.errors import StartFailed
from epe.parallel.activations import use_fast_gelus
from epe.parallel.inductor import compiled

# (query, key, value, attn_mask=..., and diffusers' options): (batch, rows, heads, head dim) each, as is the result.
Attend = Callable[..., torch.Tensor]


class OpaqueAttention:
    """What the attention processors of a model call: `attend`, which compiled code does not look into."""

    def __init__(self, attend: Attend) -> None:
        self.attend = attend
        self._place = next(_NUMBERS)
        _PLACES[self._place] = self

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        if torch.compiler.is_dynamo_compiling():
            # The options are those of a processor that nobody has set up otherwise, which are the defaults.
            return attend_at(query, key, value, attn_mask, self._place)
        return self.attend(query, key, value, attn_mask=attn_mask, **options)


# What compiled code calls, by number, for as long as its model lives.
_PLACES: WeakValueDictionary[int, OpaqueAttention] = WeakValueDictionary()
_NUMBERS = count()


def _attend_at(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, place: int
) -> torch.Tensor:
    """Attention by the number of its place; contiguous, as compiled code was told."""
    return _PLACES[place].attend(query, key, value, attn_mask=mask).contiguous()


def _result_of(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, place: int
) -> torch.Tensor:
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


attend_at = torch.library.custom_op("epe::attend", _attend_at, mutates_args=())
attend_at.register_fake(_result_of)


def compile_blocks(model: nn.Module, *, backend: str = "inductor") -> None:
    """Compile the blocks that repeat in a diffusers model, once for all sizes.

    What is compiled is their `forward`: hooks, which may ask for the lane, stay outside. `inductor` is set up for
    equal rows (`compile_rows`). Raises `StartFailed` for a model that does not name its blocks.
    """
    names = set(getattr(model, "_repeated_blocks", None) or ())
    blocks = [
        module for module in model.modules() if names & {kind.__name__ for kind in type(module).__mro__}
    ]
    if not blocks:
        raise StartFailed(f"{type(model).__name__} names no blocks that repeat; it cannot be compiled")
    for block in blocks:
        use_fast_gelus(block)
        block.forward = compiled(block.forward, backend=backend)
