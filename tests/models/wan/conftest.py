from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from diffusers import WanPipeline

from epe.models.wan.tiny import make_tiny
from tests.models.every_family import adapters_of
from tests.models.trajectories import WIDTHS
from tests.oracle import load_oracle


@pytest.fixture(scope="session")
def tiny_wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random-weight checkpoint, written once."""
    directory = tmp_path_factory.mktemp("tiny") / "wan"
    make_tiny(directory)
    return directory


@pytest.fixture(scope="session")
def pipeline(tiny_wan: Path) -> WanPipeline:
    """Diffusers' own pipeline, never touched by us: the oracle."""
    pipeline: WanPipeline = load_oracle(tiny_wan)
    return pipeline


@pytest.fixture(scope="session")
def adapters(tiny_wan: Path) -> list[Any]:
    """One adapter a rank."""
    return adapters_of(tiny_wan, max(WIDTHS), cfg_parallel_degree=2)


@pytest.fixture(scope="session")
def ulysses(tiny_wan: Path) -> list[Any]:
    """One adapter a rank, which share their heads: three, so that a lane of two has uneven parts."""
    return adapters_of(tiny_wan, max(WIDTHS), attention_mode="ulysses")
