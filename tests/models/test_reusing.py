"""With FlexCache, too, a request's bits do not depend on who draws it, with whom, or how often it moves."""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from epe.cache import CacheRules, num_records, refreshed, resolve, sizes_of
from epe.cache.schedule import fewest_tea_steps
from epe.config.attention import attention_rows
from epe.config.request import resolve_request
from epe.families import FAMILIES
from epe.messages import FreeCache, MeanCache, Pab, Request, Split, Strategy, TaylorSeer, TeaCache
from epe.models.contract import State
from epe.models.reusing import kept_bytes, num_computed, without_kept
from epe.transport.exchange import SoloExchange as Solo
from tests.cache.profiles import made_up
from tests.lanes import on_lane
from tests.models.every_family import Ranks, make_request
from tests.models.trajectories import Parcel, advance, drawn_by_lane, drawn_with_moves, same, solo

RULES = CacheRules(profile=made_up())
STEPS = 9
STATIC: tuple[Strategy, ...] = (TaylorSeer(first_enhance=2, max_order=2), FreeCache(fresh_budget=4))
MEAN = MeanCache(fresh_steps=4)
# Decided by a number of each step: the threshold is such that some steps are computed and others are not.
TEA = TeaCache(threshold=0.35, coefficients=(1.0, 0.0))


def cached(checkpoint: Path, strategy: Strategy | None, **changes: Any) -> Request:
    sizes = {} if FAMILIES[checkpoint.name].makes == "video" else {"height": 96, "width": 112}
    reuse = resolve(strategy, RULES, num_steps=STEPS)
    fields = {"num_steps": STEPS, "reuse": reuse, "prompt": "a green dog in the city", **sizes, **changes}
    return make_request(checkpoint, **fields)


def strategy_of(checkpoint: Path) -> Strategy:
    """Another one for every family, so that each is met by one of them and the suite stays short."""
    return (MEAN, *STATIC, TEA)[list(FAMILIES).index(checkpoint.name) % 4]


@pytest.mark.parametrize("strategy", [None, MEAN, *STATIC, TEA], ids=lambda each: type(each).__name__)
def test_cached_steps_are_fewer_and_leave_nothing(
    strategy: Strategy | None, ranks: Ranks, checkpoint: Path
) -> None:
    (adapter,) = ranks(1)
    state = begun = adapter.encode(cached(checkpoint, strategy))
    most = 0
    while state.step < STEPS:
        state = advance(adapter, state, Solo(), Split())
        most = max(most, kept_bytes(state))
    assert kept_bytes(state) == 0
    reuse = state.request.reuse
    if reuse is None:
        assert (num_computed(begun, state), most) == (STEPS, 0)
        return
    assert 1 < num_computed(begun, state) < STEPS
    latents = state.tensors["latents"]
    assert 0 < most <= num_records(reuse, STEPS) * latents.nbytes
    whole = solo(adapter, cached(checkpoint, None)).tensors["latents"]
    away = float((latents.float() - whole.float()).norm() / whole.float().norm())
    assert 0 < away < 0.5, "it is led on to about the same picture"


def test_every_width_gives_the_bits_of_one_rank(ranks: Ranks, checkpoint: Path) -> None:
    adapters = ranks(4)
    for strategy in dict.fromkeys((strategy_of(checkpoint), TEA)):
        request = cached(checkpoint, strategy)
        alone = solo(adapters[0], request).tensors["latents"]
        for width in (2, 3, 4):
            for latents in drawn_by_lane(adapters, request, Split(cp=width)):
                assert torch.equal(latents, alone)


def test_a_move_at_every_boundary_changes_no_bit(ranks: Ranks, checkpoint: Path) -> None:
    adapters = ranks(3)
    turns = [Split(cp=1 + turn % 3) for turn in range(STEPS)]
    for strategy in dict.fromkeys((strategy_of(checkpoint), TEA)):
        request = cached(checkpoint, strategy)
        moved = drawn_with_moves(adapters, adapters[0].encode(request), turns)
        assert same(moved, solo(adapters[0], request))


def test_what_stays_behind_on_moves_leaves_the_picture_of_the_new_plan_drawn_alone(
    ranks: Ranks, checkpoint: Path
) -> None:
    """Of a lane whose first rank has what is kept, and whose second has not."""
    adapters = ranks(2)
    for strategy in dict.fromkeys((strategy_of(checkpoint), TEA)):
        state = adapters[0].encode(cached(checkpoint, strategy))
        for num_steps in (3, 3, 3):
            plan = refreshed(state.request.reuse, state.step, num_steps=STEPS)
            begun = dataclasses.replace(state, request=replace(state.request, reuse=plan))
            bare = adapters[0].export_state(without_kept(begun))
            state, other = on_lane(2, partial(_drawn_from, adapters, begun, bare, num_steps))
            assert same(state, other)
        plain = cached(checkpoint, strategy).reuse
        assert len(state.request.reuse.computed) > len(plain.computed)
        assert same(state, solo(adapters[0], state.request))


def _drawn_from(adapters: list[Any], begun: State, bare: Parcel, num_steps: int, exchange: Any) -> State:
    adapter = adapters[exchange.position]
    state = adapter.import_state(begun.request, *bare) if exchange.position else begun
    return advance(adapter, state, exchange, Split(cp=2), num_steps=num_steps)


def test_requests_of_different_strategies_that_take_turns_do_not_meet(ranks: Ranks, checkpoint: Path) -> None:
    (adapter,) = ranks(1)
    strategies: list[Strategy | None] = [None, strategy_of(checkpoint), TEA, TaylorSeer(fresh_threshold=2)]
    requests = [cached(checkpoint, each, id=f"r{n}", seed=n) for n, each in enumerate(strategies)]
    states = [adapter.encode(request) for request in requests]
    for _ in range(STEPS):
        states = [advance(adapter, state, Solo(), Split()) for state in states]
    assert all(same(state, solo(adapter, state.request)) for state in states)


def test_in_a_batch_each_computes_its_own_steps(ranks: Ranks, checkpoint: Path) -> None:
    (adapter,) = ranks(1)
    strategies: list[Strategy | None] = [None, strategy_of(checkpoint), TEA]
    requests = [cached(checkpoint, each, id=f"r{n}", seed=n) for n, each in enumerate(strategies)]
    states = [adapter.encode(request) for request in requests]
    for _ in range(STEPS):
        states = adapter.step_together(states, Solo(), Split())  # type: ignore[attr-defined]
    assert farthest(states, [solo(adapter, request) for request in requests]) < 1e-4


def test_broadcast_attention_in_a_batch_is_that_of_its_own_request(ranks: Ranks, checkpoint: Path) -> None:
    (adapter,) = ranks(1)
    alike = [broadcast(checkpoint, id=f"r{n}", seed=n) for n in range(2)]
    mixed = [alike[0], cached(checkpoint, None, id="r1", seed=1)]
    for requests in (alike, mixed):
        states = [adapter.encode(request) for request in requests]
        for _ in range(STEPS):
            states = adapter.step_together(states, Solo(), Split())  # type: ignore[attr-defined]
        assert farthest(states, [solo(adapter, request) for request in requests]) < 1e-4


def farthest(ones: list[State], others: list[State]) -> float:
    pairs = zip(ones, others, strict=True)
    return max(float((a.tensors["latents"] - b.tensors["latents"]).abs().max()) for a, b in pairs)


PAB = Pab(self_interval=2, cross_interval=4, joint_interval=2, warmup_steps=2, cooldown_steps=1)


def broadcast(checkpoint: Path, **changes: Any) -> Request:
    family = FAMILIES[checkpoint.name]
    if not family.attention:
        pytest.skip("its attention modules do more than attention")
    rules = CacheRules(attention=family.attention)
    return cached(checkpoint, None, reuse=resolve(PAB, rules, num_steps=STEPS), **changes)


def stretches(request: Request) -> list[int]:
    """The lengths of the shortest leases that it may have."""
    assert request.reuse is not None
    ends = [*request.reuse.joints[1:], STEPS]
    return [end - start for start, end in zip(request.reuse.joints, ends, strict=True)]


def test_broadcast_attention_changes_the_picture_a_little_and_keeps_nothing(
    ranks: Ranks, checkpoint: Path
) -> None:
    (adapter,) = ranks(1)
    request = broadcast(checkpoint)
    state, kept = adapter.encode(request), []
    while state.step < STEPS:
        state = advance(adapter, state, Solo(), Split())
        kept.append(kept_bytes(state) > 0)
    assert any(kept)
    assert not kept[0], "nothing is kept before the window"
    assert not kept[-1]
    latents = state.tensors["latents"].float()
    whole = solo(adapter, cached(checkpoint, None)).tensors["latents"].float()
    assert 0 < float((latents - whole).norm() / whole.norm()) < 0.5


def test_broadcast_attention_keeps_no_more_than_was_said_before(ranks: Ranks, checkpoint: Path) -> None:
    adapters = ranks(2)
    family = FAMILIES[checkpoint.name]
    rows = attention_rows(str(checkpoint), family, value_bytes=4)
    request = broadcast(checkpoint)
    said = resolve(
        PAB,
        CacheRules(attention=family.attention, attention_rows=rows),
        num_steps=STEPS,
        sizes=sizes_of(family, request),
    )
    assert said is not None

    def most_kept(exchange: Any) -> int:
        adapter, split = adapters[exchange.position], Split(cp=exchange.width)
        state, most = adapter.encode(request), 0
        while state.step < STEPS:
            state = adapter.step(state, exchange, split)
            most = max(most, kept_bytes(state))
        return most

    alone = most_kept(Solo())
    # Text has fewer rows than it may have.
    text_bytes = sum(row.text for row in rows) * request.max_sequence_length * 2
    assert said.attention_bytes - text_bytes <= alone <= said.attention_bytes
    # Of odd rows one rank has one more.
    assert max(on_lane(2, most_kept)) <= 1.05 * said.attention_bytes / 2


def test_broadcast_attention_gives_equal_bits_on_lanes_that_change_between_its_stretches(
    ranks: Ranks,
    checkpoint: Path,
) -> None:
    adapters = ranks(3)
    request = broadcast(checkpoint)
    alone = solo(adapters[0], request)
    state = adapters[0].encode(request)
    for turn, num_steps in enumerate(stretches(request)):
        split, parcel = Split(cp=1 + turn % 3), adapters[0].export_state(state)

        def draw(exchange: Any, parcel: Any = parcel, split: Split = split, count: int = num_steps) -> State:
            adapter = adapters[exchange.position]
            return advance(adapter, adapter.import_state(request, *parcel), exchange, split, num_steps=count)

        state = on_lane(split.cp, draw)[-1]
    assert torch.equal(state.tensors["latents"], alone.tensors["latents"])


def test_guidance_counts_with_caching_on(ranks: Ranks, checkpoint: Path) -> None:
    """A cache that forgets the second branch draws the same picture whatever the scale."""
    (adapter,) = ranks(1)
    for strategy in (STATIC[0], TEA):
        drawn = [
            solo(adapter, cached(checkpoint, strategy, guidance_scale=scale)).tensors["latents"]
            for scale in (2.0, 6.0)
        ]
        assert float((drawn[0] - drawn[1]).abs().max()) > 1e-3


def test_a_request_after_one_of_another_size_has_the_bits_that_it_had_before(
    ranks: Ranks, checkpoint: Path
) -> None:
    """A cache that belongs to the model would still hold the other's; steps that nobody has named are the family's."""
    (adapter,) = ranks(1)
    family, known = FAMILIES[checkpoint.name], make_request(checkpoint)
    defaults = replace(
        family.defaults, num_steps=STEPS, num_frames=1, max_sequence_length=known.max_sequence_length
    )
    request, other = (
        resolve_request(
            family,
            prompt="a green dog",
            height=height,
            width=width,
            cache=TEA,
            cache_rules=RULES,
            defaults=defaults,
        )
        for height, width in ((96, 112), (112, 128))
    )
    before = solo(adapter, request)
    solo(adapter, other)
    assert same(solo(adapter, request), before)


def test_teacache_skips_no_more_steps_in_a_row_than_it_may(ranks: Ranks, checkpoint: Path) -> None:
    """Whatever its threshold: at 0.2 it went 48 steps of the demo model without the model."""
    (adapter,) = ranks(1)
    for longest, expected in ((1, [0, 2, 4, 6, 8]), (3, [0, 4, 8]), (5, [0, 6, 8])):
        strategy = TeaCache(threshold=1e6, coefficients=(1.0, 0.0), max_skip_steps=longest)
        states = [adapter.encode(cached(checkpoint, strategy))]
        for _ in range(STEPS):
            states.append(advance(adapter, states[-1], Solo(), Split()))
        assert [before.step for before, after in pairwise(states) if num_computed(before, after)] == expected
        assert fewest_tea_steps(strategy, STEPS, always=(0, STEPS - 1)) == len(expected)


@pytest.mark.parametrize("own", [-1e9, 1e9], ids=["never", "always"])
def test_a_rank_does_what_the_head_of_its_lane_has_found(ranks: Ranks, checkpoint: Path, own: float) -> None:
    """Ranks that decided alone would wait for each other for ever."""
    adapters = ranks(2)
    begun = adapters[0].encode(cached(checkpoint, TEA))
    states = on_lane(2, partial(_drawn_at_odds, adapters, begun, own))
    alone = solo(adapters[0], begun.request)
    assert all(torch.equal(state.tensors["latents"], alone.tensors["latents"]) for state in states)
    assert {num_computed(begun, state) for state in states} == {num_computed(begun, alone)}


def _drawn_at_odds(adapters: list[Any], state: State, own: float, exchange: Any) -> State:
    """Drawn on a lane whose second rank has summed up something else each time."""
    while state.step < STEPS:
        if exchange.position and state.scalars:
            state = dataclasses.replace(state, scalars={**state.scalars, "kept_change": own})
        state = advance(adapters[exchange.position], state, exchange, Split(cp=2))
    return state
