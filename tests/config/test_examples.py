"""The stage files in `examples/` are right as they stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from epe.config.load import build_stage
from epe.families import FAMILIES

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("stage-*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_and_makes_its_own_tiny_model(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    settings = yaml.safe_load(text)
    name, folder = settings["factory"], settings["factory_args"]["model_path"]
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": FAMILIES[name].pipeline}))
    settings["factory_args"]["model_path"] = str(tmp_path)
    stage = build_stage(settings, env={})
    assert stage.world_size == 4
    assert f"epe models make-tiny {name} {folder} " in text
    assert f"epe serve --stage-config examples/{path.name}\n" in text


def test_every_family_that_is_there_has_an_example() -> None:
    shown = {yaml.safe_load(path.read_text(encoding="utf-8"))["factory"] for path in EXAMPLES}
    assert shown == {name for name, each in FAMILIES.items() if each.available}
