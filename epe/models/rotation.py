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


def give_real_tables(block: nn.Module, argument: str, turn: Turn = torch.view_as_real) -> None:
    """Let `block` get what `turn` makes of its rotary tables, after the lane has taken its rows of them: hooks before
    this one see diffusers' own."""
    hook = partial(_turned, argument=argument, index=argument_index(block, argument), turn=turn)
    block.register_forward_pre_hook(hook, with_kwargs=True)


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
