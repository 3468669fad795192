"""Rotary tables in real numbers, as `epe.parallel.rotating` takes them.

As diffusers has them in complex numbers, compilers leave rotations as they are: four passes in float32 for queries and
keys each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from epe.parallel.plan import argument_index

Turn = Callable[[Any], Any]
# A table of cosines and sines, and nothing.
Tables = tuple[torch.Tensor, torch.Tensor]


def give_real_tables(block: nn.Module, argument: str, turn: Turn = torch.view_as_real) -> None:
    """Let `block` get what `turn` makes of its rotary tables, after the lane has taken its rows of them: hooks before
    this one see diffusers' own."""
    hook = partial(_turned, argument=argument, index=argument_index(block, argument), turn=turn)
    block.register_forward_pre_hook(hook, with_kwargs=True)


def give_one_table(rope: nn.Module) -> None:
    """Let a module that makes cosines and sines, (..., head dim) and each of them twice, give one table with both side
    by side, (..., head dim / 2, 2). What diffusers and lanes do with a pair they do with it and sines of no features.
    """
    rope.register_forward_hook(_joined)


def _joined(module: nn.Module, args: tuple[Any, ...], tables: Tables) -> Tables:
    cosines, sines = tables
    return torch.stack((cosines[..., ::2], sines[..., ::2]), dim=-1), sines[..., :0]


def _turned(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    argument: str,
    index: int,
    turn: Turn,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if argument in kwargs:
        return args, {**kwargs, argument: turn(kwargs[argument])}
    return (*args[:index], turn(args[index]), *args[index + 1 :]), kwargs
