from __future__ import annotations

import yaml

from epe.cli.main import run

STAGE = """
name: image
factory: zimage
gpu: [0, 1]
factory_args:
  model_path: {model_path}
"""


def test_a_stage_file_is_shown_with_its_defaults(tmp_path, checkpoint, capsys):
    file = tmp_path / "stage.yaml"
    file.write_text(STAGE.format(model_path=checkpoint))
    assert run(["config", "show", "--stage-config", str(file)]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["parallelism"]["scheduler"]["allowed_lane_widths"] == [1, 2]
    defaults = {
        "host": "127.0.0.1",
        "port": 18200,
        "drain_s": 60.0,
        "jobs": {"path": None, "max_mb": 1024, "max_age_s": 86400.0},
    }
    assert shown["service"].items() >= defaults.items()


def test_a_wrong_stage_file_is_one_sentence_with_the_path(tmp_path, checkpoint, capsys):
    file = tmp_path / "stage.yaml"
    file.write_text(STAGE.format(model_path=checkpoint) + "parallelism:\n  cp:\n    world_size: 3\n")
    assert run(["config", "show", "--stage-config", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("epe: parallelism.cp.world_size: 3 ")
    assert said.count("\n") == 1
