from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import ZImagePipeline

from epe.models.loading import Loading
from epe.models.zimage.adapter import ZImageAdapter, load
from tests.models.zimage.drawing import WIDTHS
from tests.oracle import load_oracle


@pytest.fixture(scope="session")
def pipeline(tiny_zimage: Path) -> ZImagePipeline:
    """Diffusers' own pipeline, never touched by us: the oracle."""
    pipeline: ZImagePipeline = load_oracle(tiny_zimage)
    return pipeline


@pytest.fixture(scope="session")
def together(tiny_zimage: Path) -> list[ZImageAdapter]:
    """One adapter a rank; guidance branches as one batch."""
    return [load(tiny_zimage, Loading(device=torch.device("cpu"))) for _ in range(max(WIDTHS))]


@pytest.fixture(scope="session")
def apart(tiny_zimage: Path) -> list[ZImageAdapter]:
    """One adapter a rank; each guidance branch alone."""
    return [
        load(tiny_zimage, Loading(device=torch.device("cpu"), cfg_parallel_degree=2))
        for _ in range(max(WIDTHS))
    ]


@pytest.fixture(scope="session")
def by_heads(tiny_zimage: Path) -> list[ZImageAdapter]:
    """One adapter a rank; guidance branches as one batch, and heads shared by the ranks of a lane."""
    return [
        load(tiny_zimage, Loading(device=torch.device("cpu"), attention_mode="ulysses"))
        for _ in range(max(WIDTHS))
    ]
