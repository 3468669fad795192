from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline

from epe.models.loading import Loading
from epe.models.wan.adapter import WanAdapter, load
from epe.models.wan.tiny import make_tiny
from tests.models.trajectories import WIDTHS
from tests.oracle import load_oracle


@pytest.fixture(scope="session")
def tiny_wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random-weight Wan checkpoint, written once."""
    directory = tmp_path_factory.mktemp("tiny") / "wan"
    make_tiny(directory)
    return directory


@pytest.fixture(scope="session")
def pipeline(tiny_wan: Path) -> WanPipeline:
    """Diffusers' own pipeline, never touched by us: the oracle."""
    pipeline: WanPipeline = load_oracle(tiny_wan)
    return pipeline


@pytest.fixture(scope="session")
def adapters(tiny_wan: Path) -> list[WanAdapter]:
    """One adapter a rank."""
    return [
        load(tiny_wan, Loading(device=torch.device("cpu"), cfg_parallel_degree=2)) for _ in range(max(WIDTHS))
    ]


@pytest.fixture(scope="session")
def ulysses(tiny_wan: Path) -> list[WanAdapter]:
    """One adapter a rank, which share their heads: three, so that a lane of two has uneven parts."""
    cpu = torch.device("cpu")
    return [load(tiny_wan, Loading(device=cpu, attention_mode="ulysses")) for _ in range(max(WIDTHS))]
