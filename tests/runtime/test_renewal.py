"""What ranks may find when they are restarted, and what is refused before anything is stopped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

from epe.config.load import load_stage
from epe.errors import Conflict
from epe.runtime.renewal import geometry_of, renewed
from epe.runtime.weights import weights_digest
from tests.service.served import write_stage


@pytest.fixture
def stage_path(tiny_zimage: Path, tmp_path: Path) -> Path:
    """A stage file whose checkpoint is the test's own."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_zimage, checkpoint)
    return write_stage(tmp_path, checkpoint, num_ranks=2)


def change(stage_path: Path, **values: object) -> None:
    tree = yaml.safe_load(stage_path.read_text())
    for path, value in values.items():
        *sections, key = path.split("__")
        section = tree
        for name in sections:
            section = section[name]
        section[key] = value
    stage_path.write_text(yaml.safe_dump(tree))


def change_weights(folder: Path, *, at: int = -1) -> None:
    """One number of one tensor is another one."""
    path = next(iter(sorted((folder / "transformer").glob("*.safetensors"))))
    tensors = load_file(path)
    name = sorted(tensors)[0]
    tensors[name].view(-1)[at] += 1
    save_file(tensors, path)


def test_the_same_weights_anywhere_have_one_name_and_others_another(stage_path: Path, tmp_path: Path):
    here = stage_path.parent / "checkpoint"
    there = tmp_path / "copy"
    shutil.copytree(here, there, copy_function=shutil.copyfile)
    first = weights_digest(here)
    assert weights_digest(there) == first
    for at in (0, -1):
        change_weights(there, at=at)
        assert weights_digest(there) != first


def test_new_weights_behind_the_same_path_are_taken(stage_path: Path):
    stage = load_stage(stage_path)
    geometry = geometry_of(stage)
    same, before = renewed(stage_path, stage=stage, geometry=geometry)
    change_weights(stage_path.parent / "checkpoint")
    _, after = renewed(stage_path, stage=stage, geometry=geometry)
    assert same == stage
    assert after != before


def test_a_stage_file_with_another_path_of_equal_geometry_is_taken(stage_path: Path, tmp_path: Path):
    stage = load_stage(stage_path)
    geometry = geometry_of(stage)
    other = tmp_path / "other"
    shutil.copytree(stage_path.parent / "checkpoint", other)
    change(stage_path, factory_args__model_path=str(other))
    new, _ = renewed(stage_path, stage=stage, geometry=geometry)
    assert new.factory_args.model_path == str(other)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dtype": "bfloat16"}, "dtype is 'auto' in force and 'bfloat16' in the stage file"),
        (
            {"parallelism__model__cfg_parallel_degree": 2},
            "parallelism.model.cfg_parallel_degree is 1 in force",
        ),
        ({"gpu": [0, 1, 2], "parallelism__cp__world_size": 3}, "gpu is"),
        ({"service__drain_s": 3}, "service.drain_s is 60.0 in force"),
        ({"what": 1}, "the stage file has become wrong: what"),
    ],
)
def test_any_other_change_of_the_stage_file_is_refused_and_named(stage_path: Path, values, words):
    stage = load_stage(stage_path)
    geometry = geometry_of(stage)
    change(stage_path, **values)
    with pytest.raises(Conflict) as refused:
        renewed(stage_path, stage=stage, geometry=geometry)
    assert words in str(refused.value)


def test_another_geometry_and_damaged_weights_are_refused(stage_path: Path):
    stage = load_stage(stage_path)
    geometry = geometry_of(stage)
    folder = stage_path.parent / "checkpoint" / "transformer"
    path = next(iter(sorted(folder.glob("*.safetensors"))))
    whole = path.read_bytes()
    path.write_bytes(b"\x08\0\0\0\0\0\0\0no json!" + whole[16:])
    with pytest.raises(Conflict, match="cannot be read"):
        renewed(stage_path, stage=stage, geometry=geometry)
    path.write_bytes(whole)
    tensors = load_file(path)
    tensors["more"] = tensors[min(tensors)].clone()
    save_file(tensors, path)
    with pytest.raises(Conflict, match="weights of other names or shapes"):
        renewed(stage_path, stage=stage, geometry=geometry)
