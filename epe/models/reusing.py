"""The steps of every family: those that FlexCache computes, and those whose velocity comes from what is kept.

What is kept stands in the canonical state, as tensors of its own: so it moves, parks and ends with the request, and no
other request can meet it. It is the guided velocity, whole on every rank; the width of a lane changes none of its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch

from epe.cache import records_at, reused_kinds, weights
from epe.messages import KEPT, ActiveStrategy, Pab, Request, Reuse, Split, TeaCache
from epe.models.contract import LATENTS, State
from epe.parallel import Broadcast, SequenceSharding
from epe.transport.exchange import Exchange

_LAST_VELOCITY, _LAST_LATENTS = f"{KEPT}velocity", f"{KEPT}latents"
# What has summed up since the last computed step, how many steps were skipped since, and how many were computed:
# TeaCache alone counts.
_CHANGE, _NUM_SKIPPED, _NUM_COMPUTED = "kept_change", "kept_num_skipped", "kept_num_computed"


@runtime_checkable
class Denoiser(Protocol):
    """What a family brings for its steps."""

    sharding: SequenceSharding

    def velocities(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[torch.Tensor]:
        """What the model says of requests of one size and one number of guidance branches, after guidance."""

    def advanced(self, state: State, velocity: torch.Tensor) -> State:
        """The state after its step in this direction."""

    def sigmas(self, request: Request) -> tuple[float, ...]:
        """The noise levels before each step and after the last."""


class Steps:
    """Steps on the three methods of a `Denoiser`, with or without FlexCache."""

    def step(self: Denoiser, state: State, exchange: Exchange, split: Split) -> State:
        """One denoising step over the lane of `exchange`; every rank of it returns the same state."""
        return _stepped(self, [state], exchange, split)[0]

    def step_together(
        self: Denoiser, states: Sequence[State], exchange: Exchange, split: Split
    ) -> list[State]:
        """One step of requests of equal size as one batch, of those that compute it; with one alone, the bits of
        `step`."""
        return _stepped(self, states, exchange, split)


def _stepped(denoiser: Denoiser, states: Sequence[State], exchange: Exchange, split: Split) -> list[State]:
    if any(isinstance(_strategy(state), Pab) for state in states):
        if _are_alike(states):
            return _broadcast(denoiser, states, exchange, split)
        # What lies inside the model is that of a whole batch, so others cannot be in it.
        return [_stepped(denoiser, [state], exchange, split)[0] for state in states]
    changes = [_change(state) for state in states]
    fresh = [_computes(*each, exchange) for each in zip(states, changes, strict=True)]
    computed = [state for state, is_fresh in zip(states, fresh, strict=True) if is_fresh]
    made = iter(denoiser.velocities(computed, exchange, split) if computed else [])
    after = []
    for state, change, is_fresh in zip(states, changes, fresh, strict=True):
        velocity = next(made) if is_fresh else _led_on(denoiser, state)
        done = denoiser.advanced(state, velocity)
        kept = _kept(denoiser, state, velocity)
        own = {name: tensor for name, tensor in done.tensors.items() if not name.startswith(KEPT)}
        counts = _counts(state, 0.0 if is_fresh else change, is_fresh=is_fresh)
        after.append(State(done.request, done.step, {**own, **kept}, {**done.scalars, **counts}))
    return after


def _are_alike(states: Sequence[State]) -> bool:
    """Whether all take attention from the same steps before, which they have taken together."""
    first = states[0]
    return all(
        (state.request.reuse, state.step) == (first.request.reuse, first.step) and state.lent is first.lent
        for state in states
    )


def _broadcast(denoiser: Denoiser, states: Sequence[State], exchange: Exchange, split: Split) -> list[State]:
    """A step that takes some attention from the steps of its lease before it."""
    reuse, step, num_steps = _reuse_of(states[0]), states[0].step, states[0].request.num_steps
    assert isinstance(reuse.strategy, Pab)
    reused, later = (
        reused_kinds(reuse.strategy, each, num_steps, kinds=reuse.kinds) for each in (step, step + 1)
    )
    broadcast = states[0].lent or Broadcast()
    broadcast.begin_step(reused=reused, keeps=later)
    # A step that neither takes nor hands on is as any other, and can be replayed.
    with denoiser.sharding.broadcasting(broadcast) if reused or later else nullcontext():
        velocities = denoiser.velocities(states, exchange, split)
    return [
        replace(denoiser.advanced(*each), lent=broadcast) for each in zip(states, velocities, strict=True)
    ]


def _strategy(state: State) -> ActiveStrategy | None:
    return None if state.request.reuse is None else state.request.reuse.strategy


def _computes(state: State, change: float, exchange: Exchange) -> bool:
    """Static strategies have said it when the request was taken. TeaCache's lane does what its head finds."""
    reuse = state.request.reuse
    if reuse is None or _is_due(reuse, state):
        return True
    if reuse.is_static:
        return False
    assert isinstance(reuse.strategy, TeaCache)
    assert reuse.strategy.threshold is not None
    found = change >= reuse.strategy.threshold
    if exchange.width == 1:
        return found  # On the device it would have to be waited for, which the number was already.
    finding = torch.tensor([found], device=state.tensors[LATENTS].device)
    return bool(exchange.broadcast(finding.to(torch.uint8), source=0).item())


def _is_due(reuse: Reuse, state: State) -> bool:
    """Whether a step is computed whatever has changed, as every rank knows without a word."""
    if reuse.computes(state.step):
        return True
    num_skipped = state.scalars.get(_NUM_SKIPPED, 0)
    return isinstance(reuse.strategy, TeaCache) and num_skipped >= reuse.strategy.max_skip_steps


def _change(state: State) -> float:
    """By how much the velocity is expected to have changed since it was last computed; 0 but for TeaCache, and where
    that decides nothing, since to ask the device for it is to wait for all earlier work."""
    reuse = state.request.reuse
    if reuse is None or reuse.is_static or _is_due(reuse, state):
        return 0.0
    assert isinstance(reuse.strategy, TeaCache)
    return state.scalars[_CHANGE] + polynomial(reuse.strategy.coefficients or (), change_of_latents(state))


def change_of_latents(state: State) -> float:
    """The mean change of the latents since the step before, in parts of their mean size."""
    now, before = state.tensors[LATENTS].float(), state.tensors[_LAST_LATENTS].float()
    return float((now - before).abs().mean() / before.abs().mean())


def polynomial(coefficients: Sequence[float], value: float) -> float:
    """Highest power first, as the published ones stand."""
    total = 0.0
    for coefficient in coefficients:
        total = total * value + coefficient
    return total


def _led_on(denoiser: Denoiser, state: State) -> torch.Tensor:
    reuse = _reuse_of(state)
    if not reuse.is_static:
        return state.tensors[_LAST_VELOCITY]
    terms = weights(reuse, denoiser.sigmas(state.request), state.step)
    records = {step: state.tensors[_record(step)] for step in terms}
    if list(terms.values()) == [1.0]:
        return next(iter(records.values()))
    total = torch.stack([weight * records[step].float() for step, weight in terms.items()]).sum(dim=0)
    return total.to(next(iter(records.values())).dtype)


def _kept(denoiser: Denoiser, state: State, velocity: torch.Tensor) -> dict[str, torch.Tensor]:
    """What later steps still need of this one and of those before it."""
    reuse, next_step = state.request.reuse, state.step + 1
    if reuse is None or next_step == state.request.num_steps:
        return {}
    if reuse.is_open(next_step, state.request.num_steps):
        return {_LAST_VELOCITY: velocity, _LAST_LATENTS: state.tensors[LATENTS]}
    if not reuse.is_static:
        return {}
    records = records_at(reuse, denoiser.sigmas(state.request), next_step)
    return {
        _record(step): velocity if step == state.step else state.tensors[_record(step)] for step in records
    }


def _counts(state: State, change: float, *, is_fresh: bool) -> dict[str, float]:
    reuse = state.request.reuse
    if reuse is None or reuse.is_static:
        return {}
    return {
        _CHANGE: change,
        _NUM_SKIPPED: 0 if is_fresh else state.scalars.get(_NUM_SKIPPED, 0) + 1,
        _NUM_COMPUTED: state.scalars.get(_NUM_COMPUTED, 0) + is_fresh,
    }


def _record(step: int) -> str:
    return f"{KEPT}velocity_{step}"


def _reuse_of(state: State) -> Reuse:
    assert state.request.reuse is not None
    return state.request.reuse


def num_computed(before: State, after: State) -> int:
    """Steps between two states of a request that the model computed."""
    reuse = after.request.reuse
    if reuse is None:
        return after.step - before.step
    if reuse.is_static:
        return reuse.num_computed(before.step, after.step)
    return int(after.scalars[_NUM_COMPUTED] - before.scalars.get(_NUM_COMPUTED, 0))


def without_kept(state: State) -> State:
    """What goes on where all that is kept is let go."""
    tensors = {name: tensor for name, tensor in state.tensors.items() if not name.startswith(KEPT)}
    return replace(state, tensors=tensors)


def kept_bytes(state: State) -> int:
    """What FlexCache keeps of a request on this rank."""
    kept = sum(tensor.nbytes for name, tensor in state.tensors.items() if name.startswith(KEPT))
    return kept + (state.lent.nbytes if state.lent else 0)
