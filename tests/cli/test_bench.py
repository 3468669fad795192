"""`epe bench`: its table and files, and that a service takes its costs for its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from epe import EmbeddedDiffusionRuntime
from epe.cli.main import run


@pytest.fixture
def settings(tiny_zimage: Path) -> dict[str, Any]:
    return {
        "name": "timed",
        "factory": "zimage",
        "gpu": [0],
        "device": "cpu",
        "parallelism": {
            "model": {"cfg_parallel_degree": 1},
            "scheduler": {"warmup_resolutions": [64], "warmup_steps": 3},
        },
        "factory_args": {"model_path": str(tiny_zimage), "default_width": 64, "default_height": 64},
    }


@pytest.fixture
def stage_file(settings: dict[str, Any], tmp_path: Path) -> str:
    path = tmp_path / "stage.yaml"
    path.write_text(yaml.safe_dump(settings))
    return str(path)


def test_steps_are_timed_in_turn_with_those_of_diffusers(
    stage_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    flags = ["--sizes", "64x96", "--rounds", "2", "--steps", "1", "--against", "diffusers"]
    assert run(["bench", "--stage-config", stage_file, *flags, "--json", str(out)]) == 0
    (row,) = json.loads(out.read_bytes())
    assert (row["height"], row["width"], row["tokens"], row["conditions"]) == (64, 96, 24, 2)
    assert len(row["step_s"]) == len(row["diffusers_step_s"]) == 2
    assert all(seconds > 0 for seconds in (*row["step_s"], *row["diffusers_step_s"], row["decode_s"]))
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["size", "tokens"]
    assert line.split()[:2] == ["64x96", "24"]


async def test_a_service_takes_the_costs_for_its_own_and_measures_nothing(
    settings: dict[str, Any], stage_file: str, tmp_path: Path
) -> None:
    costs = tmp_path / "costs.json"
    flags = ["--rounds", "1", "--steps", "1", "--costs", str(costs)]
    assert run(["bench", "--stage-config", stage_file, *flags]) == 0
    settings["parallelism"]["scheduler"]["cost_file"] = str(costs)
    async with EmbeddedDiffusionRuntime.from_stage(settings, warm_up=True) as runtime:
        assert (await runtime.status()).costs.origin == "kept"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sizes", "64x65"], "--sizes: 65 is not a multiple of 16"),
        (["--sizes", "large"], "--sizes: expected a size such as"),
        (["--rounds", "0"], "--rounds: 0 is less than 1"),
        (["--against", "others"], "invalid choice: 'others'"),
    ],
)
def test_what_cannot_be_timed_is_refused_before_anything_is_loaded(
    stage_file: str, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "--stage-config", stage_file, *flags]) == 2
    assert words in capsys.readouterr().err
