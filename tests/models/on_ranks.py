"""What the ranks of a spawned world do in the tests of every family: lanes over gloo, each rank its own adapter."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import safetensors.torch
import torch

from epe.families import FAMILIES
from epe.messages import Lane, Request, Split, StateHeader
from epe.models.catalog import load_adapter
from epe.models.contract import Adapter, State
from epe.transport.groups import Groups
from tests.world import RankContext

# The ranks of a lane, how they split a step, and how many steps they take.
Turn = tuple[tuple[int, ...], Split, int]


def draw(
    context: RankContext,
    checkpoint: str,
    request: Request,
    turns: list[Turn],
    attention_mode: str = "agkv",
) -> np.ndarray | None:
    """The latents after all turns, on the ranks of the last lane; the folder's name is that of the family."""
    adapter = _adapter(context, Path(checkpoint), attention_mode)
    groups = context.groups()
    latents = take_turns(context, adapter, request, turns, groups=groups)
    groups.close()
    return None if latents is None else latents.numpy()


def take_turns(
    context: RankContext, adapter: Adapter, request: Request, turns: list[Turn], *, groups: Groups
) -> torch.Tensor | None:
    """The latents after all turns, on the ranks of the last lane.

    Each lane resumes from what the head of the lane before it exported: nothing else survives a turn.
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


def _adapter(context: RankContext, checkpoint: Path, attention_mode: str) -> Adapter:
    key = f"adapter of {checkpoint} with {attention_mode}"
    if key not in context.kept:
        context.kept[key] = load_adapter(
            checkpoint.name,
            checkpoint,
            device=torch.device("cpu"),
            cfg_parallel_degree=2 if FAMILIES[checkpoint.name].owns("cfg") else 1,
            attention_mode=attention_mode,
        )
    adapter: Adapter = context.kept[key]
    return adapter


def _leave(context: RankContext, adapter: Adapter, state: State, number: int) -> None:
    header, tensors = adapter.export_state(state)
    context.store.set(
        f"tensors{number}", safetensors.torch.save(dict(zip(header.names, tensors, strict=True)))
    )
    context.store.set(f"header{number}", msgspec.json.encode(header).decode())


def _resumed(context: RankContext, adapter: Adapter, request: Request, number: int) -> State:
    header = msgspec.json.decode(context.store.get(f"header{number}"), type=StateHeader)
    tensors = safetensors.torch.load(context.store.get(f"tensors{number}"))
    return adapter.import_state(request, header, tuple(tensors[name] for name in header.names))
