from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import ZImagePipeline

from epe.models.zimage.adapter import ZImageAdapter, load
from tests.models.zimage.drawing import WIDTHS


@pytest.fixture(scope="session")
def pipeline(tiny_zimage: Path) -> ZImagePipeline:
    """Diffusers' own pipeline, never touched by us: the oracle."""
    torch.set_num_threads(1)
    pipeline = ZImagePipeline.from_pretrained(tiny_zimage, dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="session")
def together(tiny_zimage: Path) -> list[ZImageAdapter]:
    """One adapter a rank; guidance branches as one batch."""
    return [load(tiny_zimage, device=torch.device("cpu")) for _ in range(max(WIDTHS))]


@pytest.fixture(scope="session")
def apart(tiny_zimage: Path) -> list[ZImageAdapter]:
    """One adapter a rank; each guidance branch alone."""
    return [load(tiny_zimage, device=torch.device("cpu"), cfg_parallel_degree=2) for _ in range(max(WIDTHS))]


@pytest.fixture(scope="session")
def by_heads(tiny_zimage: Path) -> list[ZImageAdapter]:
    """One adapter a rank; guidance branches as one batch, and heads shared by the ranks of a lane."""
    return [
        load(tiny_zimage, device=torch.device("cpu"), attention_mode="ulysses") for _ in range(max(WIDTHS))
    ]
