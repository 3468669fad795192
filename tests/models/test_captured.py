"""Steps that are captured, with graphs of the CPU: the bits of the same steps as they are, for every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from epe.graphs import Graphs
from epe.messages import Request, Split
from epe.models.contract import State
from epe.transport.exchange import SoloExchange
from epe.transport.fast import FastExchange
from tests.graphs.tape import TapeDevice
from tests.models.every_family import Ranks, adapters_of, make_request
from tests.models.trajectories import drawn_by_lane, drawn_with_moves, solo, taking_turns
from tests.transport.host_ring import host_lane, on_ranks


@pytest.fixture(scope="package")
def plain(ranks: Ranks) -> Any:
    return ranks(1)[0]


def capturing(checkpoint: Path, count: int) -> tuple[list[Any], list[Graphs]]:
    adapters = adapters_of(checkpoint, count)
    graphs = [Graphs(TapeDevice(), budget_bytes=2**40) for _ in adapters]
    for adapter, own in zip(adapters, graphs, strict=True):
        adapter.use_graphs(own)  # type: ignore[attr-defined]
    return adapters, graphs


def small(checkpoint: Path, **changes: Any) -> Request:
    return make_request(checkpoint, height=64, width=96, num_frames=1, **({"num_steps": 4} | changes))


def latents(states: list[State]) -> list[torch.Tensor]:
    return [state.tensors["latents"] for state in states]


def test_requests_of_one_shape_that_take_turns_replay_the_same_graphs_with_their_own_bits(
    checkpoint: Path, plain: Any
) -> None:
    (adapter,), (graphs,) = capturing(checkpoint, 1)
    requests = [small(checkpoint, id=name, seed=seed) for name, seed in (("a", 1), ("b", 2))]
    requests.append(with_other_words(small(checkpoint, id="c", seed=3)))
    drawn = latents(taking_turns(adapter, requests))
    expected = [solo(plain, request).tensors["latents"] for request in requests]
    assert all(map(torch.equal, drawn, expected))
    assert graphs.statistics.num_replayed > graphs.statistics.num_eager
    assert graphs.statistics.num_refused == 0


def test_a_step_that_is_replayed_does_not_go_through_the_modules_of_the_model(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To know the type of its weights: three quarters of what the host did for a step of the demo model."""
    (adapter,), (graphs,) = capturing(checkpoint, 1)
    state = adapter.encode(small(checkpoint))
    for _ in range(3):
        state = adapter.step(state, SoloExchange(), Split())
    walks: list[str] = []
    for name in ("named_modules", "named_parameters", "named_buffers"):
        monkeypatch.setattr(torch.nn.Module, name, _noting(walks, name))
    num_eager = graphs.statistics.num_eager
    adapter.step(state, SoloExchange(), Split())
    assert graphs.statistics.num_eager == num_eager
    assert walks == []


def _noting(walks: list[str], name: str) -> Callable[..., Any]:
    real = getattr(torch.nn.Module, name)

    def walk(*args: Any, **kwargs: Any) -> Any:
        walks.append(name)
        return real(*args, **kwargs)

    return walk


def with_other_words(request: Request) -> Request:
    """Of as many tokens, so of one shape, and with another scale."""
    words = " ".join(reversed(request.prompt.split()))
    return replace(request, prompt=words, guidance_scale=request.guidance_scale + 1)


def test_a_lane_replays_between_its_exchanges_with_the_bits_of_one_rank(checkpoint: Path, plain: Any) -> None:
    adapters, graphs = capturing(checkpoint, 3)
    request = make_request(checkpoint, num_steps=4)
    expected = solo(plain, request).tensors["latents"]
    drawn = drawn_by_lane(adapters, request, Split(cp=3))
    assert all(torch.equal(each, expected) for each in drawn)
    assert all(own.statistics.num_replayed > 0 for own in graphs)
    assert all(own.statistics.num_refused == 0 for own in graphs)


def test_over_shared_memory_each_pass_of_a_lane_is_one_graph_with_the_bits_of_one_rank(
    checkpoint: Path, plain: Any
) -> None:
    request = make_request(checkpoint, num_steps=4)
    expected = solo(plain, request).tensors["latents"]
    adapters = adapters_of(checkpoint, 2)
    devices = [TapeDevice() for _ in adapters]
    graphs = [Graphs(device, budget_bytes=2**40) for device in devices]

    def draw(exchange: FastExchange) -> torch.Tensor:
        adapter: Any = adapters[exchange.position]
        adapter.use_graphs(graphs[exchange.position])
        state = adapter.encode(request)
        for _ in range(request.num_steps):
            state = adapter.step(state, exchange, Split(cp=2))
        return state.tensors["latents"]

    drawn = on_ranks(host_lane((0, 1), slot_bytes=4096), draw)
    assert all(torch.equal(each, expected) for each in drawn)
    for own, device in zip(graphs, devices, strict=True):
        assert own.statistics.num_replayed > 0
        assert own.statistics.num_refused == 0
        assert device.num_begun == own.statistics.num_captured


def test_a_rank_that_replays_shares_a_lane_with_one_that_does_not(checkpoint: Path, plain: Any) -> None:
    (first, second), (own, _) = capturing(checkpoint, 2)
    request = make_request(checkpoint, num_steps=4)
    mixed = [first, plain]
    expected = solo(second, request).tensors["latents"]
    assert all(torch.equal(each, expected) for each in drawn_by_lane(mixed, request, Split(cp=2)))
    assert own.statistics.num_replayed > 0


def test_graphs_survive_moves_between_lanes(checkpoint: Path, plain: Any) -> None:
    adapters, graphs = capturing(checkpoint, 2)
    request = make_request(checkpoint, num_steps=8)
    expected = solo(plain, request).tensors["latents"]
    turns = [Split(cp=width) for width in (1, 2, 1, 2, 2, 1, 2, 1)]
    state = drawn_with_moves(adapters, adapters[0].encode(request), turns)
    assert torch.equal(state.tensors["latents"], expected)
    assert sum(own.statistics.num_replayed for own in graphs) > 0
    assert all(own.statistics.num_refused == 0 for own in graphs)


def test_a_picture_is_decoded_captured_by_families_of_videos_too(checkpoint: Path, plain: Any) -> None:
    """Seen on two GPUs: one frame of Wan took one rank longer in bands than whole, waiting for Python."""
    (adapter,), (graphs,) = capturing(checkpoint, 1)
    state = solo(plain, small(checkpoint, num_steps=2))
    expected = plain.decode(state, SoloExchange())
    drawn = [adapter.decode(state, SoloExchange()) for _ in range(3)]
    assert all(torch.equal(each, expected) for each in drawn)
    assert graphs.statistics.num_replayed == 2
    assert graphs.statistics.num_refused == 0


def test_passes_that_are_captured_in_gaps_keep_no_gradients_and_give_the_same_bits(
    checkpoint: Path, plain: Any
) -> None:
    (adapter,), (graphs,) = capturing(checkpoint, 1)
    graphs.in_gaps = True
    had_gradients: list[bool] = []
    adapter.pipeline.transformer.register_forward_pre_hook(
        lambda *_: had_gradients.append(torch.is_grad_enabled())
    )
    request = small(checkpoint)
    state = adapter.encode(request)
    for _ in range(request.num_steps):
        state = adapter.step(state, SoloExchange(), Split())
        graphs.capture_seen(goes_on=True)
    assert torch.equal(state.tensors["latents"], solo(plain, request).tensors["latents"])
    assert graphs.statistics.num_replayed > graphs.statistics.num_eager
    assert graphs.statistics.num_refused == 0
    assert had_gradients
    assert not any(had_gradients)
