"""What the ranks of a spawned world do in the tests of every family: lanes over gloo, each rank its own adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import safetensors.torch
import torch
from torch.distributed import PrefixStore

from epe.families import FAMILIES
from epe.messages import Lane, Request, Split, StateHeader
from epe.models import loading
from epe.models.catalog import load_adapter
from epe.models.contract import Adapter, BatchAdapter, State
from epe.parallel import Plane
from epe.transport.groups import Groups
from tests.world import RankContext

# The ranks of a lane, how they split a step, and how many steps they take.
Turn = tuple[tuple[int, ...], Split, int]


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How the ranks load a checkpoint. In planes, each next part of the world is one of them."""

    attention_mode: str = "agkv"
    ulysses_degree: int | None = None
    cfg_parallel_degree: int = 2
    num_planes: int = 1
    dtype: str = "float32"

    def adapter(self, checkpoint: Path, *, rank: int = 0, world_size: int = 1) -> Adapter:
        """That of `rank`; the folder's name is that of the family."""
        plane = Plane(index=rank * self.num_planes // world_size, degree=self.num_planes)
        return load_adapter(
            checkpoint.name,
            checkpoint,
            loading.Loading(
                device=torch.device("cpu"),
                dtype=getattr(torch, self.dtype),
                cfg_parallel_degree=self.cfg_parallel_degree if FAMILIES[checkpoint.name].owns("cfg") else 1,
                attention_mode=self.attention_mode,
                ulysses_degree=self.ulysses_degree,
                plane=plane,
            ),
        )


LOADING = Loading()


def draw(
    context: RankContext, checkpoint: str, request: Request, turns: list[Turn], loading: Loading = LOADING
) -> np.ndarray | None:
    """The latents after all turns, on the ranks of the last lane."""
    return draw_side_by_side(context, checkpoint, [request], [turns], loading)[0]


def draw_side_by_side(
    context: RankContext,
    checkpoint: str,
    requests: list[Request],
    journeys: list[list[Turn]],
    loading: Loading = LOADING,
) -> list[np.ndarray | None]:
    """Several requests with turns of their own, a turn of each after the other; gives what `draw` gives of each."""
    adapter, groups = _adapter(context, checkpoint, loading), context.groups()
    drawn: list[torch.Tensor | None] = [None] * len(requests)
    for number in range(max(map(len, journeys))):
        for place, (request, turns) in enumerate(zip(requests, journeys, strict=True)):
            if number < len(turns):
                drawn[place] = _take_turn(context, adapter, request, turns, number, groups)
    groups.close()
    return [None if latents is None else latents.float().numpy() for latents in drawn]


def draw_as_batch(
    context: RankContext, checkpoint: str, requests: list[Request], ranks: tuple[int, ...], split: Split
) -> list[np.ndarray] | None:
    """The latents of requests of equal length, all steps as one batch, on the ranks of a lane, which all encode."""
    if context.rank not in ranks:
        return None
    adapter, groups = _adapter(context, checkpoint, LOADING), context.groups()
    assert isinstance(adapter, BatchAdapter)
    states, exchange = [adapter.encode(request) for request in requests], groups.exchange(Lane(ranks=ranks))
    for _ in range(requests[0].num_steps):
        states = adapter.step_together(states, exchange, split)
    groups.close()
    return [state.tensors["latents"].float().numpy() for state in states]


def _adapter(context: RankContext, checkpoint: str, loading: Loading) -> Adapter:
    """Loaded once a process."""
    key = f"{checkpoint} as {loading}"
    if key not in context.kept:
        context.kept[key] = loading.adapter(
            Path(checkpoint), rank=context.rank, world_size=context.world_size
        )
    return context.kept[key]


# A store closes the connection of who sets more than 8 MiB at once.
_PART_BYTES = 4 * 2**20


def take_turns(
    context: RankContext, adapter: Adapter, request: Request, turns: list[Turn], *, groups: Groups
) -> torch.Tensor | None:
    """The latents after all turns, on the ranks of the last lane.

    The first lane encodes on each of its ranks. Each other resumes from what the head of the lane before it exported:
    nothing else survives a turn.
    """
    latents = None
    for number in range(len(turns)):
        latents = _take_turn(context, adapter, request, turns, number, groups)
    return latents


def _take_turn(
    context: RankContext, adapter: Adapter, request: Request, turns: list[Turn], number: int, groups: Groups
) -> torch.Tensor | None:
    ranks, split, num_steps = turns[number]
    if context.rank not in ranks:
        return None
    state = _resumed(context, adapter, request, number) if number else adapter.encode(request)
    exchange = groups.exchange(Lane(ranks=ranks), seq=number)
    for _ in range(num_steps):
        state = adapter.step(state, exchange, split)
    if context.rank == ranks[0]:
        _leave(context, adapter, state, number + 1)
    return state.tensors["latents"]


def _leave(context: RankContext, adapter: Adapter, state: State, number: int) -> None:
    header, tensors = adapter.export_state(state)
    data = safetensors.torch.save(dict(zip(header.names, tensors, strict=True)))
    parts = [data[start : start + _PART_BYTES] for start in range(0, len(data), _PART_BYTES)]
    own = PrefixStore(f"{state.request.id}/{number}", context.store)
    for place, part in enumerate(parts):
        own.set(f"tensors/{place}", part)
    own.set("num_parts", str(len(parts)))
    own.set("header", msgspec.json.encode(header).decode())


def _resumed(context: RankContext, adapter: Adapter, request: Request, number: int) -> State:
    own = PrefixStore(f"{request.id}/{number}", context.store)
    header = msgspec.json.decode(own.get("header"), type=StateHeader)
    num_parts = int(own.get("num_parts"))
    data = b"".join(own.get(f"tensors/{place}") for place in range(num_parts))
    tensors = safetensors.torch.load(data)
    return adapter.import_state(request, header, tuple(tensors[name] for name in header.names))
