"""`epe generate`, the embedded example and `epe bench`, in one process and under torchrun: the same pixels."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from PIL import Image

from epe.cli import main
from epe.config.load import build_stage
from epe.planning.cost_set import CostSet
from epe.runtime.fingerprint import fingerprint
from tests.service.conftest import Drawn
from tests.service.served import ROOT, TORCHRUN, user_environment

pytestmark = pytest.mark.world

EXAMPLE = str(ROOT / "examples" / "epe_embedded.py")
WITHIN_S = 150.0
BODY = {"prompt": "a cat on a red chair", "size": "304x272", "num_inference_steps": 3, "seed": 41}
FLAGS = (
    "--prompt",
    "a cat on a red chair",
    "--width",
    "304",
    "--height",
    "272",
    "--steps",
    "3",
    "--seed",
    "41",
)


@pytest.fixture(scope="module")
def four(tiny_zimage: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Four]:
    """All commands in four processes under torchrun, while the tests run them in this process."""
    folder = tmp_path_factory.mktemp("four")
    planes = {"model": {"tensor_parallel_degree": 2}, "cp": {"world_size": 2}}
    commands = (
        generate_flags(tiny_zimage, folder / "generated.png"),
        bench_flags(folder / "lanes", bench_stage(tiny_zimage)),
        bench_flags(folder / "planes", bench_stage(tiny_zimage, **planes)),
        [EXAMPLE, str(tiny_zimage), str(folder)],
    )
    process = subprocess.Popen(
        [*TORCHRUN, "--nproc-per-node=4", "-m", "tests.service.both_ways", *map(json.dumps, commands)],
        env=user_environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield Four(folder, process)
    process.kill()
    process.wait()


class Four:
    """A command that runs in four processes, and the folder in which it leaves its pictures."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process

    @cached_property
    def said(self) -> str:
        """What it said on stdout; it must end well."""
        out, err = self.process.communicate(timeout=WITHIN_S)
        assert self.process.returncode == 0, err
        assert "Traceback" not in err
        return out


def read(picture: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """The pixels, and the sidecar beside them."""
    pixels = np.asarray(Image.open(picture).convert("RGB"))
    return pixels, json.loads(picture.with_suffix(".json").read_text())


def generate_flags(checkpoint: Path, output: Path) -> list[str]:
    return ["generate", "--model", "zimage", "--model-path", str(checkpoint), "--output", str(output), *FLAGS]


def bench_stage(checkpoint: Path, **parallelism: Any) -> dict[str, Any]:
    return {
        "name": "timed",
        "factory": "zimage",
        "gpu": [0, 1, 2, 3],
        "device": "cpu",
        "parallelism": {"vae": {"enabled": True}, **parallelism},
        "factory_args": {"model_path": str(checkpoint)},
    }


def bench_flags(folder: Path, stage: dict[str, Any]) -> list[str]:
    folder.mkdir()
    (folder / "stage.yaml").write_text(yaml.safe_dump(stage))
    files = ["--json", str(folder / "rows.json"), "--costs", str(folder / "costs.json")]
    timed = ["--sizes", "64x64", "--rounds", "1", "--steps", "1"]
    return ["bench", "--stage-config", str(folder / "stage.yaml"), *timed, *files]


def test_generate_draws_the_same_picture_on_one_rank_and_on_four(
    four: Four,
    tiny_zimage: Path,
    tmp_path: Path,
    diffusers_draws: Drawn,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(generate_flags(tiny_zimage, tmp_path / "one.png")) == 0
    one, about_one = read(tmp_path / "one.png")
    check_said(capsys.readouterr().out, about_one)
    # Each branch alone is within 1e-5 of diffusers in the latents: a pixel may be rounded the other way.
    assert np.abs(one.astype(int) - diffusers_draws(**BODY).astype(int)).max() <= 1
    said = four.said
    pixels, about_four = read(four.folder / "generated.png")
    check_said(said, about_four)
    assert np.array_equal(pixels, one)
    assert divided(about_one) == (1, 1, None, False, True)
    assert divided(about_four) == (4, 4, "gloo", True, True)


def test_generate_with_both_branches_as_one_batch_draws_the_picture_of_diffusers(
    tiny_zimage: Path, tmp_path: Path, diffusers_draws: Drawn
) -> None:
    argv = [*generate_flags(tiny_zimage, tmp_path / "x.png"), "--no-cfg-parallel"]
    assert main.run(argv) == 0
    pixels, about = read(tmp_path / "x.png")
    assert np.array_equal(pixels, diffusers_draws(**BODY))
    assert divided(about) == (1, 1, None, False, False)


def divided(about: dict[str, Any]) -> tuple[Any, ...]:
    names = ("world_size", "lane_width", "cp_backend", "cfg_parallel", "requested_cfg_parallel")
    return tuple(about[name] for name in names)


def check_said(text: str, about: dict[str, Any]) -> None:
    check_sidecar(about)
    assert re.findall(r"elapsed_s=([0-9.]+)", text) == [f"{about['elapsed_s']:.3f}"]


def check_sidecar(about: dict[str, Any]) -> None:
    facts = {"prompt": "a cat on a red chair", "seed": 41, "steps": 3, "width": 304, "height": 272}
    assert {name: about[name] for name in facts} == facts
    assert about["elapsed_s"] == about["generate_seconds"] > 0
    assert (about["model"], about["device"], about["dtype"], about["cp_method"]) == (
        "zimage",
        "cpu",
        "float32",
        "agkv",
    )


def test_the_embedded_example_draws_the_same_in_one_process_and_in_a_host_of_four(
    four: Four,
    tiny_zimage: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", [EXAMPLE, str(tiny_zimage), str(tmp_path)])
    runpy.run_path(EXAMPLE, run_name="__main__")
    names = [f"embedded-{seed}.png" for seed in range(3)]
    for said in (capsys.readouterr().out, four.said):
        assert [said.count(name) for name in names] == [1, 1, 1]
    ones, fours = ([(folder / name).read_bytes() for name in names] for folder in (tmp_path, four.folder))
    assert ones == fours
    assert len(set(ones)) == 3


def test_bench_times_every_width_that_the_processes_can_form(four: Four, tiny_zimage: Path) -> None:
    assert four.said
    rows, costs = benched(four.folder / "lanes")
    assert [(row["num_ranks"], row["num_decoding"]) for row in rows] == [(1, 1), (2, 2), (4, 4)]
    widths = [(task.stage, task.width) for task in costs.tasks]
    assert widths == [
        ("encode", 1),
        *((stage, each) for each in (1, 2, 4) for stage in ("denoise", "decode")),
    ]
    stage = build_stage(bench_stage(tiny_zimage))
    assert costs.fingerprint == f"4 ranks + {fingerprint(stage, device='cpu', world_size=4)}"


def test_bench_times_planes_of_which_the_first_alone_encodes_and_decodes(four: Four) -> None:
    """It ended with a traceback: ranks of the others were asked to encode, and have no tokenizer."""
    assert four.said
    rows, costs = benched(four.folder / "planes")
    assert [(row["num_ranks"], row["num_decoding"]) for row in rows] == [(1, 1), (2, 2)]
    assert all(min(row["encode_s"], *row["step_s"], row["decode_s"]) > 0 for row in rows)
    widths = [(task.stage, task.width) for task in costs.tasks]
    assert widths == [
        ("encode", 1),
        *((stage, each) for each in (1, 2) for stage in ("denoise", "decode")),
    ]


def benched(folder: Path) -> tuple[list[dict[str, Any]], CostSet]:
    """The rows and the costs of a bench."""
    costs = msgspec.json.decode((folder / "costs.json").read_bytes(), type=CostSet)
    return json.loads((folder / "rows.json").read_bytes()), costs
