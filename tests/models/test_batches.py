"""Several requests as one batch: each is drawn as it is alone, within the rounding of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from epe.families import FAMILIES
from epe.messages import Request, Split
from epe.models.catalog import load_adapter, make_tiny
from epe.models.contract import BatchAdapter, State
from epe.models.loading import Loading
from epe.parallel import Plane
from epe.transport.exchange import SoloExchange as Solo
from tests.lanes import on_lane
from tests.models.trajectories import advance, same, solo

NAMES = [name for name, each in FAMILIES.items() if each.available]
# Kernels take a batch in other blocks than one request, and sum in another order (latents of about 4).
TOLERANCE = 1e-5
LONG = "a cat on a red chair at the table in the city with rain and light"


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / request.param
    make_tiny(request.param, folder)
    return folder


def load(checkpoint: Path, **options: Any) -> Any:
    return load_adapter(checkpoint.name, checkpoint, Loading(device=torch.device("cpu"), **options))


def owns(checkpoint: Path, axis: str) -> bool:
    return FAMILIES[checkpoint.name].owns(axis)


def requests_of(checkpoint: Path, count: int) -> list[Request]:
    """Alike in size and in whether they have guidance; in nothing else."""
    frames = 9 if FAMILIES[checkpoint.name].makes == "video" else 1
    return [
        Request(
            id=f"r{number}",
            prompt=LONG if number % 2 else "a cat",
            negative_prompt="" if number % 2 else "a dog",
            height=96,
            width=112,
            num_frames=frames,
            num_steps=5 + number,
            guidance_scale=3.0 + number,
            seed=number,
        )
        for number in range(count)
    ]


def drawn_together(adapter: BatchAdapter, states: list[State], exchange: Any, split: Split) -> list[State]:
    """All to their ends; whoever is done leaves, and the others go on."""
    done: list[State] = []
    while states:
        states = adapter.step_together(states, exchange, split)
        done += [state for state in states if state.step == state.request.num_steps]
        states = [state for state in states if state.step < state.request.num_steps]
    return sorted(done, key=lambda state: state.request.id)


def farthest(one: list[State], other: list[State]) -> float:
    pairs = zip(one, other, strict=True)
    return max(float((a.tensors["latents"] - b.tensors["latents"]).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("cfg_parallel_degree", [1, 2])
@pytest.mark.parametrize("count", [2, 3])
def test_each_of_a_batch_is_drawn_as_it_is_alone(
    count: int, cfg_parallel_degree: int, checkpoint: Path
) -> None:
    if cfg_parallel_degree == 2 and not owns(checkpoint, "cfg"):
        pytest.skip("the family has no such axis")
    adapter = load(checkpoint, cfg_parallel_degree=cfg_parallel_degree)
    requests = requests_of(checkpoint, count)
    # One has been at work for two steps when the others join it.
    states = [advance(adapter, adapter.encode(requests[0]), Solo(), Split(), num_steps=2)]
    states += [adapter.encode(request) for request in requests[1:]]
    together = drawn_together(adapter, states, Solo(), Split())
    alone = [solo(adapter, request) for request in requests]
    assert farthest(together, alone) < TOLERANCE
    assert farthest(together[:1], together[1:2]) > 0.1, "they are pictures of their own"


def test_a_batch_has_equal_bits_on_every_lane(checkpoint: Path) -> None:
    requests = requests_of(checkpoint, 2)
    degree = 2 if owns(checkpoint, "cfg") else 1
    splits = [Split(), Split(cp=2), Split(cp=3), Split(cfg=degree), Split(cfg=degree, cp=2)]
    adapters = [load(checkpoint, cfg_parallel_degree=degree) for _ in range(4)]

    def draw(split: Split) -> list[list[State]]:
        def of_rank(exchange: Any) -> list[State]:
            adapter = adapters[exchange.position]
            return drawn_together(adapter, [adapter.encode(request) for request in requests], exchange, split)

        return on_lane(split.width, of_rank)

    first, *others = [states for split in splits for states in draw(split)]
    assert all(same(*pair) for states in others for pair in zip(states, first, strict=True))


def test_a_batch_over_planes_is_drawn_as_alone_too(checkpoint: Path) -> None:
    if not owns(checkpoint, "tp"):
        pytest.skip("the family has no such axis")
    requests = requests_of(checkpoint, 2)
    adapters = [load(checkpoint, plane=Plane(index, 2)) for index in range(2)]
    states = [adapters[0].encode(request) for request in requests]
    draw = on_lane(2, lambda e: drawn_together(adapters[e.position], states, e, Split(tp=2)))
    whole = load(checkpoint)
    assert farthest(draw[0], [solo(whole, request) for request in requests]) < TOLERANCE
    assert all(same(*pair) for pair in zip(*draw, strict=True))


def test_a_batch_of_one_has_the_bits_of_a_step(checkpoint: Path) -> None:
    adapter = load(checkpoint)
    state = adapter.encode(requests_of(checkpoint, 1)[0])
    (together,) = adapter.step_together([state], Solo(), Split())
    assert same(together, adapter.step(state, Solo(), Split()))
