from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder that looks like a Z-Image checkpoint to whoever reads its index alone."""
    folder = tmp_path / "Z-Image"
    folder.mkdir()
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "ZImagePipeline"}))
    return folder


@pytest.fixture
def film(tmp_path: Path) -> list[str]:
    """The least that `epe generate` wants for a video."""
    folder = tmp_path / "Wan"
    folder.mkdir()
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "WanPipeline"}))
    output = str(tmp_path / "out" / "x.mp4")
    return ["--model", "wan", "--model-path", str(folder), "--prompt", "a cube", "--output", output]


@pytest.fixture
def base(checkpoint: Path, tmp_path: Path) -> list[str]:
    """The least that `epe generate` wants."""
    output = str(tmp_path / "out" / "x.png")
    return ["--model", "zimage", "--model-path", str(checkpoint), "--prompt", "a cube", "--output", output]
