"""What the tests of every family do with an adapter: draw alone, draw on a lane, draw with moves."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from epe.messages import Request, Split, StateHeader
from epe.models.contract import Adapter, State
from epe.transport.exchange import Exchange, SoloExchange
from tests.lanes import on_lane

WIDTHS = (1, 2, 3, 4)
Parcel = tuple[StateHeader, tuple[torch.Tensor, ...]]


def solo(adapter: Adapter, request: Request) -> State:
    """The finished state, drawn on a lane of one."""
    return advance(adapter, adapter.encode(request), SoloExchange(), Split(), num_steps=request.num_steps)


def advance(adapter: Adapter, state: State, exchange: Exchange, split: Split, *, num_steps: int = 1) -> State:
    for _ in range(num_steps):
        state = adapter.step(state, exchange, split)
    return state


def drawn_by_lane(adapters: list[Any], request: Request, split: Split) -> list[torch.Tensor]:
    """The finished latents of every rank of a lane as wide as `split`; rank i has the adapter i."""

    def draw(exchange: Any) -> torch.Tensor:
        adapter = adapters[exchange.position]
        state = advance(adapter, adapter.encode(request), exchange, split, num_steps=request.num_steps)
        return state.tensors["latents"]

    return on_lane(split.cfg * split.cp, draw)


def drawn_with_moves(adapters: list[Any], state: State, turns: list[Split]) -> State:
    """One step a turn, each on another lane, whose ranks have only what the last lane exported."""
    for turn, split in enumerate(turns):
        parcel = adapters[turn % len(adapters)].export_state(state)
        states = on_lane(split.cfg * split.cp, partial(_step_from, adapters, state.request, parcel, split))
        assert all(same(other, states[0]) for other in states)
        state = states[-1]
    return state


def taking_turns(adapter: Adapter, requests: list[Request]) -> list[State]:
    """The finished states of requests that take turns on one adapter, a step each."""
    states = [adapter.encode(request) for request in requests]
    for _ in range(max(request.num_steps for request in requests)):
        states = [
            s if s.step == s.request.num_steps else advance(adapter, s, SoloExchange(), Split())
            for s in states
        ]
    return states


def same(one: State, other: State) -> bool:
    """Equal bits in every tensor, and equal scalars."""
    return (
        list(one.tensors) == list(other.tensors)
        and one.scalars == other.scalars
        and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    )


def _step_from(adapters: list[Any], request: Request, parcel: Parcel, split: Split, exchange: Any) -> State:
    adapter = adapters[exchange.position]
    state: State = adapter.step(adapter.import_state(request, *parcel), exchange, split)
    return state
