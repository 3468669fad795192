from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from diffusers import ZImagePipeline

from tests.models.every_family import adapters_of
from tests.models.trajectories import WIDTHS
from tests.oracle import load_oracle


@pytest.fixture(scope="session")
def pipeline(tiny_zimage: Path) -> ZImagePipeline:
    """Diffusers' own pipeline, never touched by us: the oracle."""
    pipeline: ZImagePipeline = load_oracle(tiny_zimage)
    return pipeline


@pytest.fixture(scope="session")
def together(tiny_zimage: Path) -> list[Any]:
    """One adapter a rank; guidance branches as one batch."""
    return adapters_of(tiny_zimage, max(WIDTHS))


@pytest.fixture(scope="session")
def apart(tiny_zimage: Path) -> list[Any]:
    """One adapter a rank; each guidance branch alone."""
    return adapters_of(tiny_zimage, max(WIDTHS), cfg_parallel_degree=2)


@pytest.fixture(scope="session")
def by_heads(tiny_zimage: Path) -> list[Any]:
    """One adapter a rank; guidance branches as one batch, and heads shared by the ranks of a lane."""
    return adapters_of(tiny_zimage, max(WIDTHS), attention_mode="ulysses")
