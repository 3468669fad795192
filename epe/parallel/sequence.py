"""What a lane means for sequences: each rank holds some rows of each stream.

`SequenceSharding` is installed once on a loaded model. It knows no model: the places come from a `ShardPlan`,
the lane of each step from `over`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import nn

from epe.families import AttentionKind
from epe.graphs import Graphs, call_key
from epe.parallel.attention import TeamLimits, attend_on_lane, team_size
from epe.parallel.blocks import Attend, attend_to_all
from epe.parallel.broadcast import Broadcast, BroadcastPass, Memories
from epe.parallel.choosing import Chooser
from epe.parallel.compiling import OpaqueAttention
from epe.parallel.plan import (
    CrossAttention,
    InputSplit,
    JointAttention,
    OutputGather,
    ShardPlan,
    argument_index,
    find_modules,
)
from epe.parallel.seam import check_seam, redirect_attention
from epe.parallel.shares import Share, share_rows
from epe.transport.exchange import Exchange


class SequenceSharding:
    """Shards one model over the lane of the moment; without one, or on a lane of one, it is diffusers' own.

    `limits` bound the ranks that share heads: 1 is AGKV, None is Ulysses with as many as there can be; of several
    each lane takes what takes it less time. Not thread-safe: one forward pass at a time, as on a device thread.
    """

    def __init__(self, model: nn.Module, plan: ShardPlan, *, limits: TeamLimits = (1,)) -> None:
        check_seam()
        self._model = model
        self._graphs: Graphs | None = None
        self._plan = plan
        self._limits = limits
        self._chooser = Chooser()
        self._exchange: Exchange | None = None
        self._broadcast: Broadcast | None = None
        self._memories = Memories()
        # Of the pass that is running.
        self._broadcast_pass: BroadcastPass | None = None
        # The streams of the pass that is running, by name.
        self._open: dict[str, Share] = {}
        # What many layers take (rotary tables) is split once a pass; the whole stays beside its part, so that
        # no other tensor can get its id meanwhile.
        self._parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._install(model)

    def use_graphs(self, graphs: Graphs) -> None:
        """Let passes be captured from now on."""
        self._graphs = graphs

    def run(self, exchange: Exchange, *args: Any, **kwargs: Any) -> Any:
        """What the model gives for its arguments, shared by the ranks of `exchange`.

        Every rank of the lane must run the same passes on equal inputs; each gets the whole output.
        """
        # A lane that still measures how it attends waits for the device, which a graph cannot.
        measures = exchange.width > 1 and len(self._limits) > 1
        graphs = None if measures else self._graphs
        if self._broadcast is not None:
            return self._run_broadcast(self._broadcast, graphs, exchange, args, kwargs)
        if graphs is None:
            return self._run(exchange, args, kwargs)
        return graphs.run(self._run, exchange, args, kwargs)

    def _run_broadcast(
        self,
        broadcast: Broadcast,
        graphs: Graphs | None,
        exchange: Exchange,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A pass that takes attention from earlier steps, or hands it on."""
        lane = exchange.width, exchange.position
        begun = broadcast.begin_pass(
            lambda number: self._memories.find((call_key(args, kwargs), lane, number), broadcast)
        )
        work = partial(self._run_with, begun)
        if graphs is None:
            return work(exchange, args, kwargs)
        return graphs.run(work, exchange, args, kwargs, variant=begun.variant, memory=begun.memory)

    def _run_with(
        self, begun: BroadcastPass, exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._broadcast_pass = begun
        try:
            return self._run(exchange, args, kwargs)
        finally:
            self._broadcast_pass = None

    def _run(self, exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.over(exchange):
            return self._model(*args, **kwargs)

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
            self._end_pass()

    def _install(self, model: nn.Module) -> None:
        for split in self._plan.splits:
            for module in find_modules(model, split.modules):
                hook = partial(self._split_input, rule=split, index=argument_index(module, split.argument))
                module.register_forward_pre_hook(hook, with_kwargs=True)
        for gather in self._plan.gathers:
            for module in find_modules(model, gather.modules):
                module.register_forward_hook(partial(self._gather_output, rule=gather))
        self.share_attention()
        model.register_forward_hook(lambda module, args, output: self._end_pass())

    @contextmanager
    def broadcasting(self, broadcast: Broadcast) -> Iterator[None]:
        """Within it, attention modules give what `broadcast` keeps of them, where it says so."""
        self._broadcast = broadcast
        try:
            yield
        finally:
            self._broadcast = None

    def _around(self, kind: AttentionKind, place: int, attend: Callable[[], Any]) -> Any:
        return attend() if self._broadcast_pass is None else self._broadcast_pass.around(kind, place, attend)

    def share_attention(self) -> None:
        """Let the attention of the model's processors be that of the lane; again, when some were replaced."""
        places = count()
        for attention in self._plan.attention:
            arounds = {
                module: partial(self._around, attention.kind, next(places))
                for module in find_modules(self._model, attention.modules)
            }
            redirect_attention(arounds, OpaqueAttention(partial(self._attend, attention)))

    def _end_pass(self) -> None:
        if self._exchange is not None:
            self._chooser.end_pass(self._exchange)
        self._open.clear()
        self._parts.clear()

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
            return args, {**kwargs, rule.argument: self._part_of(kwargs[rule.argument], rule)}
        return (*args[:index], self._part_of(args[index], rule), *args[index + 1 :]), kwargs

    def _part_of(self, argument: Any, rule: InputSplit) -> Any:
        if rule.item is None:
            return self._rows_of_this_rank(argument, rule)
        part = self._rows_of_this_rank(argument[rule.item], rule)
        return (*argument[: rule.item], part, *argument[rule.item + 1 :])

    def _rows_of_this_rank(self, whole: torch.Tensor, rule: InputSplit) -> torch.Tensor:
        num_rows = whole.shape[rule.dim]
        if rule.stream not in self._open:
            replicable = rule.stream in self._plan.replicable
            share = share_rows(num_rows, width=self._lane.width, replicable=replicable)
            self._open[rule.stream] = share
            return self._cut(whole, share, rule.dim)
        share = self._open[rule.stream]
        if num_rows != share.num_rows:
            raise ValueError(f"{num_rows} rows beside the {share.num_rows} of the {rule.stream} stream")
        if id(whole) not in self._parts:
            self._parts[id(whole)] = (whole, self._cut(whole, share, rule.dim))
        return self._parts[id(whole)][1]

    def _cut(self, whole: torch.Tensor, share: Share, dim: int) -> torch.Tensor:
        start, end = share.bounds(self._lane.position)
        # Linear layers with bias give other bits over a non-contiguous slice of a batch.
        return whole.narrow(dim, start, end - start).contiguous()

    def _gather_output(
        self, module: nn.Module, args: Any, output: torch.Tensor, *, rule: OutputGather
    ) -> torch.Tensor | None:
        if self._exchange is None:
            return None
        share = self._open[rule.stream]
        return output if share.replicated else self._lane.gather(output, share.sizes, dim=rule.dim)

    @property
    def _lane(self) -> Exchange:
        assert self._exchange is not None
        return self._exchange

    def _attend(
        self,
        rule: JointAttention | CrossAttention,
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
        if self._exchange is None:
            return attend(query, key, value)
        if is_causal or not _covers_keys_only(attn_mask):
            raise ValueError("attention shared by a lane takes masks over keys only")
        match rule:
            case CrossAttention(stream=stream):
                share = self._open[stream]
                has_last = share.bounds(self._lane.position)[1] == share.num_rows
                return attend_to_all(attend, query, key, value, num_rows=share.num_rows, has_last=has_last)
            case JointAttention(streams=streams):
                shares = tuple(self._open[stream] for stream in streams)
                return self._attend_jointly(attend, query, key, value, shares=shares)

    def _attend_jointly(
        self,
        attend: Attend,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        shares: tuple[Share, ...],
    ) -> torch.Tensor:
        lane, batch, num_heads, depth = self._lane, query.shape[0], query.shape[2], query.shape[3]
        sizes = (team_size(lane.width, num_heads=num_heads, limit=limit) for limit in self._limits)
        return self._chooser.attend(
            lambda size: attend_on_lane(attend, query, key, value, shares=shares, exchange=lane, limit=size),
            sizes=tuple(dict.fromkeys(sizes)),
            exchange=lane,
            shape=(*(share.num_rows for share in shares), batch, num_heads, depth),
            device=query.device,
        )


def _covers_keys_only(mask: torch.Tensor | None) -> bool:
    """(batch, keys), or broadcast over heads and queries: (batch, 1, 1, keys)."""
    return mask is None or mask.ndim == 2 or mask.shape[-3:-1] == (1, 1)
