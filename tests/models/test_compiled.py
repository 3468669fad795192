"""Compiled blocks, with a compiler that leaves operations as they are: what is compiled, and how often."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from epe.errors import StartFailed
from epe.graphs import Graphs
from epe.messages import Split
from epe.models.contract import Adapter
from epe.parallel import compile_blocks
from tests.graphs.tape import TapeDevice
from tests.models.every_family import adapters_of, make_request
from tests.models.trajectories import drawn_by_lane, solo


@pytest.fixture
def compiled(checkpoint: Path) -> Iterator[Adapter]:
    torch.compiler.reset()
    counters.clear()
    (adapter,) = adapters_of(checkpoint, 1, cfg_parallel_degree=2)
    adapter.compile_blocks(backend="eager")  # type: ignore[attr-defined]
    yield adapter
    torch.compiler.reset()


def num_compiled() -> int:
    return int(counters["stats"]["unique_graphs"])


def test_changes_of_size_lane_and_prompt_compile_nothing_anew(checkpoint: Path, compiled: Any) -> None:
    plain, other = adapters_of(checkpoint, 2, cfg_parallel_degree=2)

    def latents(width: int, height: int, **words: str) -> torch.Tensor:
        request = make_request(checkpoint, height=height, width=96, num_frames=1, num_steps=2, **words)
        expected = solo(plain, request).tensors["latents"]
        if width == 1:
            drawn = solo(compiled, request).tensors["latents"]
        else:
            drawn = drawn_by_lane([compiled, other], request, Split(cp=width))[0]
        # Rotations in complex numbers become others, in real numbers, and so do activations.
        torch.testing.assert_close(drawn, expected, rtol=0, atol=2e-5)
        return drawn

    latents(1, 64)
    latents(2, 128)
    before = num_compiled()
    for width, height, words in (
        (1, 64, {}),
        (2, 128, {"prompt": "a cat"}),
        (1, 128, {"prompt": "a cat"}),
        (2, 96, {"prompt": "a red cube beside a blue ball " * 5}),
        (1, 160, {}),
    ):
        latents(width, height, **words)
    assert before > 0
    assert num_compiled() == before


def test_all_attention_of_one_rule_is_of_one_kind_to_a_compiler(compiled: Any) -> None:
    """Processors that are each of a class of their own would have each block compiled anew."""
    modules = list(compiled.pipeline.transformer.modules())
    kinds = {type(module.processor) for module in modules if hasattr(module, "processor")}
    # Z-Image's text has attention of its own, which no lane shares.
    shared = {kind for kind in kinds if kind.__name__.startswith("Lane")}
    assert len(shared) <= len(compiled.sharding._plan.attention)
    assert len(kinds - shared) <= 1


def test_a_compiled_decoder_draws_the_same_picture(checkpoint: Path) -> None:
    torch.compiler.reset()
    plain, adapter = adapters_of(checkpoint, 2)
    state = solo(plain, make_request(checkpoint, height=64, width=96, num_frames=1, num_steps=2))
    adapter.compile_decoder(backend="eager")  # type: ignore[attr-defined]
    expected, drawn = plain.decode(state), adapter.decode(state)
    assert expected is not None
    assert drawn is not None
    assert (drawn.int() - expected.int()).abs().max() <= 1


def test_a_model_that_is_let_go_is_freed(checkpoint: Path) -> None:
    (adapter,) = adapters_of(checkpoint, 1)
    graphs = Graphs(TapeDevice(), budget_bytes=2**40)
    adapter.use_graphs(graphs)  # type: ignore[attr-defined]
    solo(adapter, make_request(checkpoint, height=64, width=96, num_frames=1, num_steps=3))
    assert graphs.statistics.num_captured > 0
    transformer = weakref.ref(adapter.pipeline.transformer)  # type: ignore[attr-defined]
    del adapter, graphs
    gc.collect()
    assert transformer() is None


def test_a_model_that_names_no_blocks_is_refused() -> None:
    with pytest.raises(StartFailed, match="Linear names no blocks that repeat"):
        compile_blocks(nn.Linear(2, 2), backend="eager")
