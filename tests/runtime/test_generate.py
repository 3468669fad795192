"""`epe generate` below its flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from epe.cli.generate import build_options
from epe.families import FAMILIES, Family
from epe.runtime.generate import stage_of

AVAILABLE = [each for each in FAMILIES.values() if each.available]


def _flags(family: Family, folder: Path, *more: str) -> list[str]:
    (folder / "model_index.json").write_text(f'{{"_class_name": "{family.pipeline}"}}')
    output = folder / ("x.mp4" if family.makes == "video" else "x.png")
    given = ["--model", family.name, "--model-path", str(folder), "--prompt", "a", "--output", str(output)]
    return [*given, *more]


@pytest.mark.parametrize("family", AVAILABLE, ids=lambda each: each.name)
def test_the_flags_of_every_family_make_a_stage_over_the_whole_world(family: Family, tmp_path: Path) -> None:
    stage = stage_of(build_options(_flags(family, tmp_path), env={}), world_size=4)
    assert stage.factory == family.name
    assert stage.parallelism.scheduler.allowed_lane_widths == (4,)
    assert stage.parallelism.model.cfg_parallel_degree == (2 if family.owns("cfg") else 1)


def test_the_method_its_degree_and_its_transport_reach_the_stage(tmp_path: Path) -> None:
    flags = ("--cp-method", "ulysses", "--ulysses-degree", "2", "--cp-backend", "nccl")
    options = build_options(_flags(FAMILIES["flux1"], tmp_path, *flags), env={})
    cp = stage_of(options, world_size=4).parallelism.cp
    assert (cp.attention_mode, cp.ulysses_degree, cp.ulysses_transport) == ("ulysses", 2, "nccl")
    assert cp.agkv_transport == "auto"
