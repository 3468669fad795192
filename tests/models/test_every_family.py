"""What holds for every family alike, on lanes of threads: eight ranks, and sizes that people ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from epe.families import FAMILIES, Family
from epe.messages import OutputFormat, Request, Split
from epe.models.catalog import make_tiny
from epe.models.contract import Adapter
from tests.models.on_ranks import Loading
from tests.models.trajectories import drawn_by_lane, solo
from tests.oracle import draw, load_oracle

AVAILABLE = [name for name, family in FAMILIES.items() if family.available]
GUIDANCE = {"zimage": 5.0, "flux1": 3.5, "flux2-klein": 4.0, "qwen-image": 4.0, "wan": 5.0}
# (height, width): 3969, 3600, 4080, 3969 and 3600 rows, which 2, 3, 4 or 8 ranks cannot share evenly, or in rows whose
# number is no multiple of what kernels take at once.
SIZES = {
    "zimage": (1008, 1008),
    "flux1": (720, 1280),
    "flux2-klein": (1360, 768),
    "qwen-image": (1008, 1008),
    "wan": (720, 1280),
}


@pytest.fixture(scope="module", params=AVAILABLE)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("tiny") / request.param
    make_tiny(request.param, directory)
    return directory


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> Any:
    return load_oracle(checkpoint)


def _request(family: Family, height: int, width: int, *, num_frames: int = 1, num_steps: int = 2) -> Request:
    return Request(
        id="r",
        prompt="a green dog in the city " * 8,
        negative_prompt="a chair" if family.negative_prompt else "",
        height=height,
        width=width,
        num_frames=num_frames,
        num_steps=num_steps,
        guidance_scale=GUIDANCE[family.name],
        seed=5,
        max_sequence_length=150,
        output_format=OutputFormat.RAW,
    )


def _adapters(checkpoint: Path, count: int, **loading: Any) -> list[Adapter]:
    """One a rank; guidance branches as the pipeline has them."""
    return [Loading(cfg_parallel_degree=1, **loading).adapter(checkpoint) for _ in range(count)]


@pytest.mark.parametrize(
    "loading",
    [{}, {"attention_mode": "ulysses"}, {"attention_mode": "ulysses", "ulysses_degree": 2}],
    ids=str,
)
def test_eight_ranks_give_the_pipelines_bits(loading: dict[str, Any], checkpoint: Path, oracle: Any) -> None:
    family = FAMILIES[checkpoint.name]
    request = (
        _request(family, 272, 304) if family.makes == "picture" else _request(family, 80, 112, num_frames=9)
    )
    expected = draw(oracle, request, family=family).latents
    drawn = drawn_by_lane(_adapters(checkpoint, 8, **loading), request, Split(cp=8))
    assert all(torch.equal(latents, expected) for latents in drawn)


def test_sizes_that_no_width_divides_give_the_pipelines_bits(checkpoint: Path, oracle: Any) -> None:
    family = FAMILIES[checkpoint.name]
    request = _request(family, *SIZES[family.name], num_steps=family.min_steps)
    expected = draw(oracle, request, family=family).latents
    adapters = _adapters(checkpoint, 4)
    for width in (2, 3, 4):
        drawn = drawn_by_lane(adapters, request, Split(cp=width))
        assert all(torch.equal(latents, expected) for latents in drawn), width


def test_the_seed_decides_the_picture(checkpoint: Path) -> None:
    family, (adapter,) = FAMILIES[checkpoint.name], _adapters(checkpoint, 1)
    request = _request(family, 64, 64)
    first, again = (adapter.decode(solo(adapter, request)) for _ in range(2))
    other = adapter.decode(solo(adapter, replace(request, seed=6)))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
