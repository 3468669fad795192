"""What the ranks of a world do in `benchmarks.h200_families`: one function a case, which gives what its line says."""

from __future__ import annotations

import hashlib
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.place import Case, Clock, Place, Setting, advance
from epe.messages import Lane, Request, Split
from epe.models.contract import Adapter
from tests.models.on_ranks import Turn, take_turns
from tests.oracle import draw
from tests.world import RankContext

Line = dict[str, Any]
ROUNDS, TIMED_STEPS, STEPS = 3, 4, 2


def alone(context: RankContext, setting: Setting, case: Case) -> Line | None:
    """On rank 0: our adapter and diffusers' pipeline around the same weights: latents, pixels and times of steps."""
    place = Place(context, setting, case, kind="alone")
    if context.rank:
        return None
    factory = place.factory(shared=False)
    weights = factory.weights()
    pipeline = factory.pipeline(weights)
    adapter = place.adapter_around(factory.pipeline(weights))
    even, odd = (place.request(size, num_steps=TIMED_STEPS) for size in (0, 1))
    expected = draw(pipeline, even, pixels=True)
    state = advance(adapter, adapter.encode(even))
    expected_odd = draw(pipeline, odd)
    state_odd = advance(adapter, adapter.encode(odd))
    return {
        "num_parameters": sum(weight.numel() for weight in weights.values()),
        **_difference(state.tensors["latents"], expected.latents),
        "odd": _difference(state_odd.tensors["latents"], expected_odd.latents),
        "pixel_difference": pixel_difference(adapter.decode(state).cpu().numpy(), expected.pixels),
        **_step_times(place, pipeline, adapter, even),
        **place.memory(),
    }


def lane(context: RankContext, setting: Setting, case: Case) -> Line | None:
    """A lane against one rank: latents after two steps, and the time of the second."""
    place = Place(context, setting, case, kind="lanes")
    if context.rank not in case.ranks:
        return None
    adapter, request = place.adapter(), place.request(case.size, num_steps=STEPS)
    groups, clock = place.groups(), Clock(place.device)
    exchange = groups.exchange(Lane(ranks=case.ranks))
    latents = advance(adapter, adapter.encode(request), exchange, case.split, clock=clock).tensors["latents"]
    groups.close()
    line: Line = {"digest": _digest(latents), "step_ms": round(1e3 * clock.laps_s[-1], 1), **place.memory()}
    if context.rank == case.ranks[0]:
        line |= _difference(latents, place.drawn_alone(adapter, request))
    return line


def moves(context: RankContext, setting: Setting, case: Case) -> Line | None:
    """A request that changes its lane at every step boundary, against one rank."""
    place = Place(context, setting, case, kind="lanes")
    everyone = tuple(range(context.world_size))
    lanes = ((0,), (everyone[-1], 0), everyone, (everyone[-1],), everyone[::-1])
    turns: list[Turn] = [(ranks, Split(cp=len(ranks)), 1) for ranks in lanes]
    adapter, request = place.adapter(), place.request(case.size, num_steps=len(turns))
    groups = place.groups()
    latents = take_turns(context, adapter, request, turns, groups=groups)
    groups.close()
    assert latents is not None, "every rank is in the last lane"
    line: Line = {"digest": _digest(latents)}
    if context.rank == 0:
        line |= _difference(latents, place.drawn_alone(adapter, request))
    return line


def _step_times(place: Place, pipeline: Any, adapter: Adapter, request: Request) -> Line:
    """Milliseconds of a step, ours and diffusers', in turn; the first step of a round does not count."""
    ours, theirs = [], []
    for _ in range(ROUNDS):
        clock = Clock(place.device)
        draw(pipeline, request, watcher=clock.lap)
        theirs += clock.laps_s[1:]
        clock = Clock(place.device)
        advance(adapter, adapter.encode(request), clock=clock)
        ours += clock.laps_s[1:]
    return {
        "step_ms": round(1e3 * median(ours), 2),
        "diffusers_step_ms": round(1e3 * median(theirs), 2),
        "ratio": round(median(ours) / median(theirs), 4),
    }


def _difference(ours: torch.Tensor, expected: torch.Tensor) -> Line:
    return {
        "equal_bits": torch.equal(ours, expected),
        "largest_difference": (ours.double() - expected.double()).abs().max().item(),
        "largest_value": expected.double().abs().max().item(),
    }


def pixel_difference(ours: np.ndarray, expected: np.ndarray | None) -> int:
    """In steps of 1/255."""
    assert expected is not None
    return int(np.abs(ours.astype(int) - expected).max())


def _digest(latents: torch.Tensor) -> str:
    """The same exactly for the same bits."""
    return hashlib.sha256(latents.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
