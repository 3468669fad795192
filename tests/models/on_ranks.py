"""What the ranks of a spawned world do in the tests of every family: lanes over gloo, each rank its own adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import safetensors.torch
import torch

from epe.families import FAMILIES
from epe.messages import Lane, Request, Split, StateHeader
from epe.models.catalog import load_adapter
from epe.models.contract import Adapter, State
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
            device=torch.device("cpu"),
            dtype=getattr(torch, self.dtype),
            cfg_parallel_degree=self.cfg_parallel_degree if FAMILIES[checkpoint.name].owns("cfg") else 1,
            attention_mode=self.attention_mode,
            ulysses_degree=self.ulysses_degree,
            plane=plane,
        )


LOADING = Loading()


def draw(
    context: RankContext, checkpoint: str, request: Request, turns: list[Turn], loading: Loading = LOADING
) -> np.ndarray | None:
    """The latents after all turns, on the ranks of the last lane."""
    key = f"{checkpoint} as {loading}"
    if key not in context.kept:
        context.kept[key] = loading.adapter(
            Path(checkpoint), rank=context.rank, world_size=context.world_size
        )
    groups = context.groups()
    latents = take_turns(context, context.kept[key], request, turns, groups=groups)
    groups.close()
    return None if latents is None else latents.float().numpy()


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
    for number, (ranks, split, num_steps) in enumerate(turns):
        if context.rank not in ranks:
            continue
        state = _resumed(context, adapter, request, number) if number else adapter.encode(request)
        exchange = groups.exchange(Lane(ranks=ranks), seq=number)
        for _ in range(num_steps):
            state = adapter.step(state, exchange, split)
        if context.rank == ranks[0]:
            _leave(context, adapter, state, number + 1)
        latents = state.tensors["latents"] if number == len(turns) - 1 else None
    return latents


def _leave(context: RankContext, adapter: Adapter, state: State, number: int) -> None:
    header, tensors = adapter.export_state(state)
    data = safetensors.torch.save(dict(zip(header.names, tensors, strict=True)))
    parts = [data[start : start + _PART_BYTES] for start in range(0, len(data), _PART_BYTES)]
    for place, part in enumerate(parts):
        context.store.set(f"tensors{number}/{place}", part)
    context.store.set(f"parts{number}", str(len(parts)))
    context.store.set(f"header{number}", msgspec.json.encode(header).decode())


def _resumed(context: RankContext, adapter: Adapter, request: Request, number: int) -> State:
    header = msgspec.json.decode(context.store.get(f"header{number}"), type=StateHeader)
    num_parts = int(context.store.get(f"parts{number}"))
    data = b"".join(context.store.get(f"tensors{number}/{place}") for place in range(num_parts))
    tensors = safetensors.torch.load(data)
    return adapter.import_state(request, header, tuple(tensors[name] for name in header.names))
