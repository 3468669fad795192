from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import QwenImagePipeline

from epe.models.loading import Loading
from epe.models.qwen_image.adapter import QwenImageAdapter, load
from epe.models.qwen_image.tiny import make_tiny
from tests.models.trajectories import WIDTHS
from tests.oracle import load_oracle

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def tiny_qwen_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random-weight Qwen-Image checkpoint, written once."""
    directory = tmp_path_factory.mktemp("tiny") / "qwen-image"
    make_tiny(directory)
    return directory


@pytest.fixture(scope="session")
def pipeline(tiny_qwen_image: Path) -> QwenImagePipeline:
    """Diffusers' own pipeline, never touched by us: the oracle."""
    pipeline: QwenImagePipeline = load_oracle(tiny_qwen_image)
    return pipeline


@pytest.fixture(scope="session")
def adapters(tiny_qwen_image: Path) -> list[QwenImageAdapter]:
    """One adapter a rank."""
    return [load(tiny_qwen_image, Loading(device=CPU)) for _ in range(max(WIDTHS))]


@pytest.fixture(scope="session")
def ulysses(tiny_qwen_image: Path) -> list[QwenImageAdapter]:
    """One adapter a rank, which share their heads: three, so that a lane of two has uneven parts."""
    return [load(tiny_qwen_image, Loading(device=CPU, attention_mode="ulysses")) for _ in range(max(WIDTHS))]
