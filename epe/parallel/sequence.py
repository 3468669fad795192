"""What a lane means for a sequence: each rank holds some of its rows.

`SequenceSharding` is installed once on a loaded model. It knows no model: the places come from a `ShardPlan`,
the lane of each step from `over`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import nn

from epe.geometry import MIN_ROWS, max_width, split_rows
from epe.parallel.agkv import Attend, attend_to_gathered
from epe.parallel.plan import InputSplit, OutputGather, ShardPlan, argument_index, find_modules
from epe.parallel.seam import check_seam, redirect_attention
from epe.transport.exchange import Exchange


class Method(Protocol):
    """How the ranks of a lane attend to each other's rows: AGKV, or another that gives the same bits."""

    def __call__(
        self,
        attend: Attend,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        sizes: tuple[int, ...],
        exchange: Exchange,
    ) -> torch.Tensor: ...


class SequenceSharding:
    """Shards one model over the lane of the moment; without one, or on a lane of one, it is diffusers' own.

    Not thread-safe: one forward pass at a time, as on a device thread.
    """

    def __init__(self, model: nn.Module, plan: ShardPlan, *, method: Method = attend_to_gathered) -> None:
        check_seam()
        self._method = method
        self._exchange: Exchange | None = None
        self._sizes: tuple[int, ...] | None = None
        # What many layers take (rotary tables) is split once a pass; the whole stays beside its part, so that
        # no other tensor can get its id meanwhile.
        self._parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._install(model, plan)

    @contextmanager
    def over(self, exchange: Exchange) -> Iterator[None]:
        """Within it, forward passes of the model are shared by the ranks of `exchange`.

        Every rank of the lane must run the same passes on equal inputs; each gets the whole output.
        """
        if self._exchange is not None:
            raise ValueError("the model already works for a lane; a step runs to its end first")
        self._exchange = exchange if exchange.width > 1 else None
        try:
            yield
        finally:
            self._exchange = None
            self._close_stream()

    def _install(self, model: nn.Module, plan: ShardPlan) -> None:
        for split in plan.splits:
            for module in find_modules(model, split.modules):
                hook = partial(self._split_input, rule=split, index=argument_index(module, split.argument))
                module.register_forward_pre_hook(hook, with_kwargs=True)
        for gather in plan.gathers:
            for module in find_modules(model, gather.modules):
                module.register_forward_hook(partial(self._gather_output, rule=gather))
        for path in plan.attention:
            for module in find_modules(model, path):
                redirect_attention(module, self._attend)

    def _split_input(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        rule: InputSplit,
        index: int,
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._exchange is None:
            return None
        if rule.argument in kwargs:
            return args, {**kwargs, rule.argument: self._rows_of_this_rank(kwargs[rule.argument], rule.dim)}
        return (*args[:index], self._rows_of_this_rank(args[index], rule.dim), *args[index + 1 :]), kwargs

    def _rows_of_this_rank(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        if self._sizes is None:
            self._sizes = self._shares(whole.shape[dim])
            return self._cut(whole, dim)
        if whole.shape[dim] != sum(self._sizes):
            raise ValueError(f"{whole.shape[dim]} rows beside a stream of {sum(self._sizes)}")
        if id(whole) not in self._parts:
            self._parts[id(whole)] = (whole, self._cut(whole, dim))
        return self._parts[id(whole)][1]

    def _shares(self, num_rows: int) -> tuple[int, ...]:
        width = self._lane.width
        if width > max_width(num_rows):
            raise ValueError(
                f"a lane of {width} ranks leaves some with fewer than {MIN_ROWS} of {num_rows} rows; "
                f"the widest lane for them is {max_width(num_rows)}"
            )
        return split_rows(num_rows, width)

    def _cut(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        assert self._sizes is not None
        position = self._lane.position
        rows = whole.narrow(dim, sum(self._sizes[:position]), self._sizes[position])
        # Linear layers with bias give other bits over a non-contiguous slice of a batch.
        return rows.contiguous()

    def _gather_output(
        self, module: nn.Module, args: Any, output: torch.Tensor, *, rule: OutputGather
    ) -> Any:
        if self._sizes is None:
            return None
        whole = self._lane.gather(output, self._sizes, dim=rule.dim)
        self._close_stream()
        return whole

    def _close_stream(self) -> None:
        self._sizes = None
        self._parts.clear()

    @property
    def _lane(self) -> Exchange:
        assert self._exchange is not None
        return self._exchange

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> torch.Tensor:
        """In place of `dispatch_attention_fn`, which it calls: the backend stays diffusers' choice."""
        attend = partial(
            dispatch_attention_fn, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, **options
        )
        if self._sizes is None:
            return attend(query, key, value)
        if is_causal or not _covers_keys_only(attn_mask):
            raise ValueError("attention shared by a lane takes masks over keys only")
        return self._method(attend, query, key, value, sizes=self._sizes, exchange=self._lane)


def _covers_keys_only(mask: torch.Tensor | None) -> bool:
    """(batch, keys), or broadcast over the queries: (batch, heads, 1, keys)."""
    return mask is None or mask.ndim == 2 or mask.shape[-2] == 1
