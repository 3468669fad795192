"""Steps that take attention from earlier ones or hand it on, captured with graphs of the CPU: their bits as they are,
for every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from epe.cache import CacheRules, resolve
from epe.families import FAMILIES
from epe.messages import Pab, Request, Split
from epe.models.contract import State
from epe.models.reusing import kept_bytes
from epe.transport.exchange import SoloExchange
from tests.lanes import on_lane
from tests.models.every_family import Ranks
from tests.models.test_captured import capturing, small
from tests.models.trajectories import advance, solo, taking_turns

STEPS = 9
# Of two kinds at once, each at its own steps: some steps take one kind and hand on both.
PAB = Pab(self_interval=2, cross_interval=3, joint_interval=3, warmup_steps=1, cooldown_steps=1)


def asked(checkpoint: Path, pab: Pab | None = PAB, **changes: Any) -> Request:
    attention = FAMILIES[checkpoint.name].attention
    if not attention:
        pytest.skip("its attention modules do more than attention")
    reuse = resolve(pab, CacheRules(attention=attention), num_steps=STEPS)
    return small(checkpoint, num_steps=STEPS, reuse=reuse, **changes)


def same_pictures(drawn: list[State], plain: Any) -> bool:
    """As uncaptured on one rank."""
    return all(
        torch.equal(state.tensors["latents"], solo(plain, state.request).tensors["latents"])
        for state in drawn
    )


@pytest.fixture(scope="module")
def plain(ranks: Ranks) -> Any:
    return ranks(1)[0]


def test_requests_one_after_the_other_replay_the_same_graphs_with_their_own_bits(
    checkpoint: Path, plain: Any
) -> None:
    (adapter,), (graphs,) = capturing(checkpoint, 1)
    for turn in range(3):
        before = graphs.statistics.num_eager
        state = solo(adapter, asked(checkpoint, id=f"r{turn}", seed=turn))
        assert same_pictures([state], plain)
        assert turn == 0 or graphs.statistics.num_eager == before, "nothing runs uncaptured any more"
    assert graphs.statistics.num_refused == 0


def test_requests_that_take_turns_at_every_step_do_not_meet_in_the_memory_of_the_graphs(
    checkpoint: Path, plain: Any
) -> None:
    (adapter,), (graphs,) = capturing(checkpoint, 1)
    solo(adapter, asked(checkpoint, id="before"))
    requests = [asked(checkpoint, id=name, seed=seed) for name, seed in (("a", 1), ("b", 2))]
    requests.append(asked(checkpoint, None, id="c", seed=3))
    assert same_pictures(taking_turns(adapter, requests), plain)
    assert graphs.statistics.num_refused == 0


def test_lanes_that_change_between_stretches_replay_with_the_bits_of_one_rank(
    checkpoint: Path, plain: Any
) -> None:
    adapters, graphs = capturing(checkpoint, 2)
    request = asked(checkpoint)
    assert request.reuse is not None
    state = adapters[0].encode(request)
    ends = [*request.reuse.joints[1:], STEPS]
    for turn, (start, end) in enumerate(zip(request.reuse.joints, ends, strict=True)):
        parcel, width = adapters[0].export_state(state), 1 + turn % 2

        def draw(exchange: Any, parcel: Any = parcel, count: int = end - start, width: int = width) -> State:
            adapter = adapters[exchange.position]
            begun = adapter.import_state(request, *parcel)
            return advance(adapter, begun, exchange, Split(cp=width), num_steps=count)

        state = on_lane(width, draw)[0]
    assert same_pictures([state], plain)
    assert all(own.statistics.num_refused == 0 for own in graphs)


def test_passes_that_are_captured_in_gaps_find_what_was_handed_on(checkpoint: Path, plain: Any) -> None:
    (adapter,), (graphs,) = capturing(checkpoint, 1)
    graphs.in_gaps = True
    for turn in range(2):
        request = asked(checkpoint, id=f"r{turn}", seed=turn)
        assert request.reuse is not None
        state = adapter.encode(request)
        before = graphs.statistics.num_eager
        for step in range(STEPS):
            state = adapter.step(state, SoloExchange(), Split())
            if request.reuse.may_end(step + 1, STEPS):
                state = State(state.request, state.step, state.tensors, state.scalars)
                graphs.capture_seen(goes_on=True)
        assert same_pictures([state], plain)
        assert turn == 0 or graphs.statistics.num_eager == before
    assert graphs.statistics.num_refused == 0


def test_what_graphs_hold_for_requests_is_counted_in_their_memory(checkpoint: Path) -> None:
    (adapter,), (graphs,) = capturing(checkpoint, 1)
    solo(adapter, asked(checkpoint))
    state, kept = adapter.encode(asked(checkpoint)), 0
    while state.step < STEPS:
        state = adapter.step(state, SoloExchange(), Split())
        kept = max(kept, kept_bytes(state))
    assert kept > 0
    assert kept_bytes(state) == 0
    # The graphs of the CPU count a byte each.
    assert graphs.statistics.num_bytes == kept + graphs.statistics.num_captured
