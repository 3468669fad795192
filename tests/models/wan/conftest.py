from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline

from epe.models.wan.adapter import WanAdapter, load
from epe.models.wan.tiny import make_tiny
from tests.models.trajectories import WIDTHS


@pytest.fixture(scope="session")
def tiny_wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random-weight Wan checkpoint, written once."""
    directory = tmp_path_factory.mktemp("tiny") / "wan"
    make_tiny(directory)
    return directory


@pytest.fixture(scope="session")
def pipeline(tiny_wan: Path) -> WanPipeline:
    """Diffusers' own pipeline, never touched by us: the oracle."""
    torch.set_num_threads(1)
    pipeline = WanPipeline.from_pretrained(tiny_wan, dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="session")
def adapters(tiny_wan: Path) -> list[WanAdapter]:
    """One adapter a rank."""
    return [load(tiny_wan, device=torch.device("cpu"), cfg_parallel_degree=2) for _ in range(max(WIDTHS))]


@pytest.fixture(scope="session")
def ulysses(tiny_wan: Path) -> list[WanAdapter]:
    """One adapter a rank, which share their heads: three, so that a lane of two has uneven parts."""
    cpu = torch.device("cpu")
    return [load(tiny_wan, device=cpu, attention_mode="ulysses") for _ in range(max(WIDTHS))]
