"""FlexCache under leases: what a rank reports of them, and that nothing is left of hundreds of mixed requests."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from random import Random

import pytest
import torch
from msgspec.structs import replace

from epe.cache import CacheRules, refreshed, resolve
from epe.execution.run import SoloLanes, Work, run_lease
from epe.execution.states import States
from epe.messages import (
    FreeCache,
    Lane,
    Lease,
    MagCache,
    MeanCache,
    Request,
    Split,
    Stage,
    Strategy,
    TaylorSeer,
    TeaCache,
)
from epe.models.contract import LATENTS, State
from epe.models.reusing import Steps, kept_bytes
from epe.transport.exchange import Exchange
from tests.cache.profiles import made_up
from tests.execution.counting import CountingAdapter, request

STEPS = 12
RULES = CacheRules(profile=made_up())
STRATEGIES: tuple[Strategy | None, ...] = (
    None,
    MagCache(threshold=0.3),
    MeanCache(fresh_steps=5),
    TeaCache(threshold=0.2, coefficients=(1.0, 0.0)),
    TaylorSeer(max_order=2),
    FreeCache(fresh_budget=5),
)


class SmallAdapter(Steps, CountingAdapter):
    """Latents of four numbers that a velocity made of them pulls towards 3; it remembers which tensors it has made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[weakref.ref[torch.Tensor]] = []
        self.num_computed = 0

    def encode(self, request: Request) -> State:
        latents = torch.full((4,), float(request.seed % 7))
        return State(request=request, step=0, tensors={LATENTS: latents})

    def velocities(self, states: Sequence[State], exchange: Exchange, split: Split) -> list[torch.Tensor]:
        self.num_computed += len(states)
        velocities = [state.tensors[LATENTS] - 3.0 + 0.1 * state.step for state in states]
        self.made += [weakref.ref(velocity) for velocity in velocities]
        return velocities

    def advanced(self, state: State, velocity: torch.Tensor) -> State:
        return State(state.request, state.step + 1, {LATENTS: state.tensors[LATENTS] - velocity / STEPS})

    def sigmas(self, request: Request) -> tuple[float, ...]:
        return tuple(1 - step / STEPS for step in range(STEPS + 1))


def cached(number: int) -> Request:
    reuse = resolve(STRATEGIES[number % len(STRATEGIES)], RULES, num_steps=STEPS)
    return replace(request(f"r{number}", steps=STEPS), seed=number, reuse=reuse)


def after_each_step(adapter: SmallAdapter, request: Request) -> Iterator[State]:
    """Drawn alone, step by step."""
    state = adapter.encode(request)
    while state.step < STEPS:
        state = adapter.step(state, SoloLanes().exchange(Lane(ranks=(0,))), Split())
        yield state


def drawn(adapter: SmallAdapter, request: Request) -> State:
    return list(after_each_step(adapter, request))[-1]


def run(adapter: SmallAdapter, states: States, request: Request, first_step: int, num_steps: int) -> Work:
    lease = Lease(
        seq=1,
        epoch=0,
        lane=Lane(ranks=(0,)),
        stage=Stage.DENOISE,
        request=request,
        first_step=first_step,
        num_steps=num_steps,
    )
    (work,) = run_lease([lease], adapter=adapter, lanes=SoloLanes(), states=states, synchronize=lambda: None)
    return work


def test_a_lease_reports_what_was_computed_and_what_is_kept() -> None:
    for number in range(len(STRATEGIES)):
        adapter, states, asked = SmallAdapter(), States(), cached(number)
        states.put(adapter.encode(asked))
        works = [run(adapter, states, asked, first, 4) for first in range(0, STEPS, 4)]
        assert sum(work.num_computed or 0 for work in works) == adapter.num_computed
        assert kept_bytes(states.take(asked.id, STEPS)) == 0
        assert (works[0].kept_bytes > 0) is (asked.reuse is not None)
        if asked.reuse is not None:
            assert adapter.num_computed < STEPS


def test_a_rank_that_holds_the_state_goes_on_with_the_plan_of_the_lease() -> None:
    adapter, states, asked = SmallAdapter(), States(), cached(STRATEGIES.index(FreeCache(fresh_budget=5)))
    states.put(adapter.encode(asked))
    run(adapter, states, asked, 0, 6)
    again = replace(asked, reuse=refreshed(asked.reuse, 6, num_steps=STEPS))
    work = run(adapter, states, again, 6, 6)
    assert work.num_computed == again.num_computed(6, STEPS) == asked.num_computed(6, STEPS) + 1
    latents = states.take(asked.id, STEPS).tensors[LATENTS]
    assert torch.equal(latents, drawn(SmallAdapter(), again).tensors[LATENTS])


def test_five_hundred_mixed_requests_leave_no_state() -> None:
    adapter, states, source = SmallAdapter(), States(), Random(0)
    alone = {}
    for number in range(len(STRATEGIES)):
        alone[number] = drawn(adapter, cached(number)).tensors[LATENTS].tolist()
    left = dict.fromkeys(range(500), 0)
    for number in left:
        states.put(adapter.encode(cached(number)))
    while left:
        number = source.choice(list(left))
        steps = min(source.randint(1, 5), STEPS - left[number])
        run(adapter, states, cached(number), left[number], steps)
        left[number] += steps
        if left[number] == STEPS or source.random() < 0.02:
            if left[number] == STEPS and number in alone:
                assert states.take(f"r{number}", STEPS).tensors[LATENTS].tolist() == alone[number]
            states.end(f"r{number}", "it has ended, or was cancelled")
            del left[number]
    gc.collect()
    assert len(states) == 0
    assert [each() for each in adapter.made if each() is not None] == []


@pytest.mark.parametrize(("warmup", "cooldown", "expected"), [(1, 1, 10), (4, 5, 6), (8, 4, 0), (0, 0, 11)])
def test_teacache_keeps_nothing_where_nothing_is_to_be_decided(
    warmup: int, cooldown: int, expected: int
) -> None:
    """It kept two tensors of each request of few steps, also where a stage allows none."""
    strategy = TeaCache(coefficients=(1.0, 0.0), warmup_steps=warmup, cooldown_steps=cooldown)
    reuse = resolve(strategy, RULES, num_steps=STEPS)
    states = list(after_each_step(SmallAdapter(), replace(request("r", steps=STEPS), reuse=reuse)))
    kept = [kept_bytes(state) for state in states if kept_bytes(state)]
    assert kept == [2 * states[0].tensors[LATENTS].nbytes] * expected


def test_what_is_kept_is_bounded_by_what_was_said_when_the_request_was_taken() -> None:
    from epe.cache import num_records

    for number in range(1, len(STRATEGIES)):
        asked = cached(number)
        states = list(after_each_step(SmallAdapter(), asked))
        assert asked.reuse is not None
        most = num_records(asked.reuse, STEPS) * states[0].tensors[LATENTS].nbytes
        assert max(map(kept_bytes, states)) <= most


def test_a_larger_threshold_of_teacache_computes_less_and_strays_more_but_not_without_bound() -> None:
    """From thresholds at which all is computed to any above: there is no cliff to a picture of nothing."""
    asked = replace(request("r", steps=STEPS), seed=6)
    whole, found = drawn(SmallAdapter(), asked), []
    for power in range(24):
        strategy = TeaCache(threshold=0.01 * 1.25**power, coefficients=(1.0, 0.0), max_skip_steps=3)
        reuse = resolve(strategy, RULES, num_steps=STEPS)
        state = drawn(SmallAdapter(), replace(asked, reuse=reuse))
        away = float((state.tensors[LATENTS] - whole.tensors[LATENTS]).abs().max())
        found.append((state.scalars["kept_num_computed"], away))
    assert found[0] == (STEPS, 0.0)
    assert found[-1][0] == 4
    assert found == sorted(found, key=lambda each: (-each[0], each[1]))
    way = float((whole.tensors[LATENTS] - 6.0).abs().max())
    assert found[-1][1] < 0.05 * way
