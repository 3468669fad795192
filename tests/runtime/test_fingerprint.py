"""A changed fingerprint measures again, so it names what costs depend on and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from epe.config.load import build_stage
from epe.config.stage import Stage
from epe.runtime.fingerprint import fingerprint


def stage(checkpoint: Path, **scheduler: object) -> dict:
    return {
        "name": "image",
        "factory": "zimage",
        "gpu": [0, 1],
        "parallelism": {"scheduler": scheduler},
        "factory_args": {"model_path": str(checkpoint)},
    }


def of(stage_file: dict, *, device: str = "cpu") -> str:
    built: Stage = build_stage(stage_file)
    return fingerprint(built, device=device, world_size=2)


def test_it_does_not_change_with_names_ports_or_policies(tiny_zimage: Path):
    plain = stage(tiny_zimage)
    other = {**stage(tiny_zimage, policy="latency", pulse_ms=7), "name": "other", "service": {"port": 0}}
    assert of(plain) == of(other)


def test_a_checkpoint_that_was_moved_is_the_same(tiny_zimage: Path, tmp_path: Path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(tiny_zimage, moved)
    assert of(stage(tiny_zimage)) == of(stage(moved))


@pytest.mark.parametrize("change", ["config", "weights"])
def test_another_model_behind_the_same_name_is_another(tiny_zimage: Path, tmp_path: Path, change: str):
    copy = tmp_path / tiny_zimage.name
    shutil.copytree(tiny_zimage, copy)
    pattern = "transformer/config.json" if change == "config" else "transformer/*.safetensors"
    with next(copy.glob(pattern)).open("ab") as file:
        file.write(b" ")
    assert of(stage(tiny_zimage)) != of(stage(copy))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"parallelism": {"cp": {"attention_mode": "ulysses"}}},
        {"parallelism": {"model": {"cfg_parallel_degree": 1}}},
    ],
)
def test_what_changes_the_work_changes_it(tiny_zimage: Path, change: dict):
    assert of(stage(tiny_zimage)) != of({**stage(tiny_zimage), **change})


def test_another_device_is_another(tiny_zimage: Path):
    assert of(stage(tiny_zimage), device="NVIDIA A") != of(stage(tiny_zimage), device="NVIDIA B")


def test_threads_of_the_host_count_on_a_cpu_alone(tiny_zimage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of `epe bench` under torchrun, which gives each process one thread, were none to `epe serve` of several
    GPUs, whose ranks have as many as there are cores."""
    before = {device: of(stage(tiny_zimage), device=device) for device in ("cpu", "NVIDIA A")}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert of(stage(tiny_zimage), device="NVIDIA A") == before["NVIDIA A"]
    assert of(stage(tiny_zimage)) != before["cpu"]
