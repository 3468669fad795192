from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from diffusers import QwenImagePipeline

from epe.models.qwen_image.tiny import make_tiny
from tests.models.every_family import adapters_of
from tests.models.trajectories import WIDTHS
from tests.oracle import load_oracle


@pytest.fixture(scope="session")
def tiny_qwen_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random-weight checkpoint, written once."""
    directory = tmp_path_factory.mktemp("tiny") / "qwen-image"
    make_tiny(directory)
    return directory


@pytest.fixture(scope="session")
def pipeline(tiny_qwen_image: Path) -> QwenImagePipeline:
    """Diffusers' own pipeline, never touched by us: the oracle."""
    pipeline: QwenImagePipeline = load_oracle(tiny_qwen_image)
    return pipeline


@pytest.fixture(scope="session")
def adapters(tiny_qwen_image: Path) -> list[Any]:
    """One adapter a rank."""
    return adapters_of(tiny_qwen_image, max(WIDTHS))


@pytest.fixture(scope="session")
def ulysses(tiny_qwen_image: Path) -> list[Any]:
    """One adapter a rank, which share their heads: three, so that a lane of two has uneven parts."""
    return adapters_of(tiny_qwen_image, max(WIDTHS), attention_mode="ulysses")
