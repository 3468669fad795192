from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from epe.config.load import build_stage
from epe.config.stage import Stage

Settings = dict[str, object]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder that looks like a Z-Image checkpoint to whoever reads its index alone."""
    folder = tmp_path / "Z-Image"
    folder.mkdir()
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "ZImagePipeline"}))
    return folder


@pytest.fixture
def settings(checkpoint: Path) -> Settings:
    """The seeds' example stage, as plain values."""
    return {
        "name": "image",
        "process": "image",
        "factory": "zimage",
        "gpu": [0, 1, 2, 3],
        "parallelism": {
            "cp": {"world_size": 4},
            "vae": {"enabled": True},
            "scheduler": {
                "policy": "elastic",
                "allowed_lane_widths": [1, 2, 4],
                "warmup_resolutions": [512],
                "warmup_steps": 3,
            },
            "model": {},
        },
        "factory_args": {
            "model_path": str(checkpoint),
            "default_width": 512,
            "default_height": 512,
        },
        "service": {"host": "0.0.0.0", "port": 18200},
    }


Change = Callable[..., Stage]


@pytest.fixture
def stage_with(settings: Settings) -> Change:
    """The example stage with one key set (dotted path), in an empty environment unless given."""

    def build(path: str, value: object, *, env: dict[str, str] | None = None) -> Stage:
        here: object = settings
        *place, key = path.split(".")
        for name in place:
            here = here.setdefault(name, {})  # type: ignore[attr-defined]
        here[key] = value  # type: ignore[index]
        return build_stage(settings, env=env or {})

    return build
