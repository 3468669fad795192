"""States of every family: they move whole, belong to one request, and are never changed in place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from epe.errors import NonFinite
from epe.messages import Split, StateHeader
from epe.models.contract import Adapter
from epe.transport.exchange import SoloExchange
from tests.models.every_family import Ranks, make_request
from tests.models.trajectories import advance, same, solo, taking_turns


@pytest.fixture(scope="module")
def adapters(ranks: Ranks) -> list[Adapter]:
    return ranks(2)


def test_eight_requests_that_take_turns_do_not_see_each_other(
    adapters: list[Adapter], checkpoint: Path
) -> None:
    requests = [
        make_request(
            checkpoint,
            id=str(n),
            prompt="a cat" if n % 2 else "a green dog in the city",
            num_steps=2 + n % 4,
            seed=n,
            height=64 + 16 * (n % 3),
            width=64 + 16 * n,
            num_frames=1 + 4 * (n % 3) if checkpoint.name == "wan" else 1,
            max_sequence_length=60 + n,
        )
        for n in range(8)
    ]
    together = taking_turns(adapters[0], requests)
    assert all(same(state, solo(adapters[0], state.request)) for state in together)


@pytest.mark.parametrize("boundary", range(4))
def test_a_state_goes_over_the_wire_and_on_elsewhere_at_every_boundary(
    boundary: int, adapters: list[Adapter], checkpoint: Path
) -> None:
    request = make_request(checkpoint)
    here, there = adapters
    state = advance(here, here.encode(request), SoloExchange(), Split(), num_steps=boundary)
    header, tensors = here.export_state(state)
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(header), type=StateHeader)
    # The source goes on with another request meanwhile.
    solo(here, make_request(checkpoint, id="other", seed=1, num_steps=2))
    moved = there.import_state(request, arrived, tensors)
    assert same(moved, state)
    left = request.num_steps - boundary
    assert same(advance(there, moved, SoloExchange(), Split(), num_steps=left), solo(here, request))


def test_a_state_lies_in_memory_as_it_does_once_it_has_moved(
    adapters: list[Adapter], checkpoint: Path
) -> None:
    state = adapters[0].encode(make_request(checkpoint))
    for _ in range(2):
        moved = adapters[1].import_state(state.request, *adapters[0].export_state(state))
        strides = {name: tensor.stride() for name, tensor in state.tensors.items()}
        assert strides == {name: tensor.stride() for name, tensor in moved.tensors.items()}
        state = advance(adapters[0], state, SoloExchange(), Split())


def test_the_state_of_another_request_is_not_imported(adapters: list[Adapter], checkpoint: Path) -> None:
    parcel = adapters[0].export_state(adapters[0].encode(make_request(checkpoint, id="a")))
    with pytest.raises(ValueError, match="state of request a"):
        adapters[0].import_state(make_request(checkpoint, id="b"), *parcel)


def test_a_step_leaves_the_state_that_it_was_given(adapters: list[Adapter], checkpoint: Path) -> None:
    state = adapters[0].encode(make_request(checkpoint))
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    after = advance(adapters[0], state, SoloExchange(), Split())
    assert (state.step, after.step) == (0, 1)
    assert all(torch.equal(state.tensors[name], tensor) for name, tensor in before.items())
    assert not torch.equal(after.tensors["latents"], before["latents"])
    # Such tensors could not be used outside of inference mode.
    assert not any(tensor.is_inference() for tensor in after.tensors.values())


def test_no_step_is_taken_after_the_last(adapters: list[Adapter], checkpoint: Path) -> None:
    finished = solo(adapters[0], make_request(checkpoint, num_steps=2))
    with pytest.raises(ValueError, match="has only 2 steps"):
        adapters[0].step(finished, SoloExchange(), Split())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_never_returned(bad: float, adapters: list[Adapter], checkpoint: Path) -> None:
    state = adapters[0].encode(make_request(checkpoint, height=64, width=64))
    latents = state.tensors["latents"].clone(memory_format=torch.contiguous_format)
    latents.view(-1)[100] = bad
    with pytest.raises(NonFinite, match=r"decoded (picture|video)") as caught:
        adapters[0].decode(replace(state, tensors={**state.tensors, "latents": latents}))
    assert caught.value.stage == "decode"
