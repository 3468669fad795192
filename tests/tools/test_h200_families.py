"""The program that compares real sizes on GPUs, on small models and the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.h200_families import Run, had, perform, runs, setting_of
from benchmarks.h200_page import read
from benchmarks.place import Case
from tests.world import ROOT, World

pytestmark = pytest.mark.world

SETTING = setting_of("cpu", tiny=True)


def _lines(world: World, folder: Path) -> list[dict[str, Any]]:
    return [perform(world, run, SETTING, limit_s=100.0) for run in runs(["wan"], SETTING, folder)]


def test_every_case_of_a_family_runs_on_small_models_with_equal_bits(world: World, tmp_path: Path) -> None:
    lines = _lines(world, tmp_path)
    assert {line["case"] for line in lines} == {"alone", "runtime", "lane", "moves"}
    assert {(line["mode"], line["width"]) for line in lines if line["case"] == "lane"} == {
        (mode, width) for mode in ("agkv", "ulysses") for width in (2, 3, 4)
    }
    for line in lines:
        assert line["ranks_agree"], line
        assert line.get("equal_bits", True), line
        assert line.get("odd", {}).get("equal_bits", True), line
        assert line.get("pixel_difference", 0) == 0, line
    assert all("equal_bits" in line or line["case"] == "runtime" for line in lines)


def test_a_case_that_fails_costs_its_own_line_alone(world: World) -> None:
    broken, whole = (Run("family_cases:alone", Case(family=name)) for name in ("no such family", "wan"))
    assert "no such family" in perform(world, broken, SETTING, limit_s=60.0)["error"]
    assert perform(world, whole, SETTING, limit_s=100.0)["equal_bits"]


def test_a_case_that_outlasts_its_limit_is_ended(world: World) -> None:
    line = perform(world, Run("family_cases:alone", Case(family="wan")), SETTING, limit_s=0.01)
    assert "did not end in time" in line["error"]


def test_what_a_kept_run_has_is_known_again_by_its_backend_and_its_case() -> None:
    _, lines = read([ROOT / "benchmarks/kept/h200-b.jsonl"], untimed=())
    known = {had(line, backend=line["backend"], blas=line["blas"]) for line in lines}
    described = (run.described() for run in runs(["flux1"], SETTING, Path()))
    flux1 = [run for run in described if run["width"] != 3]  # No kept run has lanes of three.
    assert all(had(run, backend="gloo", blas="as-it-is") in known for run in flux1)
    assert not any(had(run, backend="nccl", blas="as-it-is") in known for run in flux1)
    assert not any(had(run, backend="gloo", blas="exact") in known for run in flux1)
