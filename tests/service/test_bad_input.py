"""What a user can get wrong: one sentence each, with what would be right; and nothing else is disturbed."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epe.cli.main import run
from tests.service.conftest import Drawn
from tests.service.served import EPE, ROOT, Served, user_environment, write_stage

pytestmark = pytest.mark.world


@pytest.fixture
def stage(tiny_zimage: Path, tmp_path: Path) -> Path:
    return write_stage(tmp_path, tiny_zimage, num_ranks=4)


def said_by(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence on stderr of a command that ends with code 2."""
    assert run(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("epe: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"size": "256x250"}, "size", "250 is not a multiple of 16; nearest are 240 and 256"),
        ({"height": 1000, "width": 256}, "height", "1000 is not a multiple of 16; nearest are 992 and 1008"),
        ({"num_inference_steps": 0}, "num_inference_steps", "0 is not from 1 to"),
        ({"num_inference_steps": 2.5}, "num_inference_steps", "2.5"),
        ({"prompt": None}, "prompt", "prompt"),
        ({"prompt": "word " * 2000}, "prompt", "at most 512 are allowed"),
        ({"stepz": 3}, "stepz", "stepz"),
        ({"seed": -1}, "seed", "-1 is not from 0"),
    ],
)
async def test_a_bad_request_is_400_with_its_field_and_the_next_picture_is_right(
    body: dict[str, Any], param: str, words: str, service: Served, diffusers_draws: Drawn
) -> None:
    refused = await service.draw(**body)
    error = refused.body["error"]
    assert (refused.status, error["param"]) == (400, param)
    assert words in error["message"]
    assert "Traceback" not in str(error)
    right = await service.draw(size="96x64", num_inference_steps=2, seed=3)
    assert np.array_equal(right.pixels, diffusers_draws(size="96x64", num_inference_steps=2, seed=3))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("device: cpu", "devise: cpu", "devise: this key is not known; did you mean device?"),
        ("device: cpu", "device: cpu\ndevice: cuda", "device: given twice, in lines 4 and 5"),
        (
            "cp: {world_size: 4}",
            "sp: {world_size: 4}",
            "parallelism.sp: this key is not used any more; write parallelism.cp",
        ),
        ("factory_args: {", "factory_args: {model_paht: x, ", "did you mean model_path?"),
        ("cp: {world_size: 4}", "cp: {world_size: 3}", "must be the number of gpu entries, which is 4"),
        ("model_path: /", "model_path: /nowhere/", "factory_args.model_path: there is no folder /nowhere/"),
        ("default_width: 256", "default_width: 250", "nearest are 240 and 256"),
    ],
)
def test_a_stage_file_that_is_wrong_is_one_sentence_with_the_path_of_the_key(
    old: str, new: str, words: str, stage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in stage.read_text()
    stage.write_text(stage.read_text().replace(old, new))
    assert words in said_by(["serve", "--stage-config", str(stage)], capsys)


def test_a_launcher_with_another_number_of_processes_is_one_sentence(
    stage: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    said = said_by(["serve", "--stage-config", str(stage)], capsys)
    assert "gpu: names 4 devices, but WORLD_SIZE is 2" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--height", "250"], "--height 250 is not a multiple of 16; nearest are 240 and 256"),
        (["--steps", "0"], "--steps 0 is not from 1 to"),
        (["--prompt"], "--prompt"),
        (["--model-path", "/nowhere"], "--model-path: there is no folder /nowhere"),
    ],
)
def test_a_wrong_flag_of_generate_is_one_sentence_with_the_flag(
    flags: list[str], words: str, tiny_zimage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"--prompt": "a cat", "--model-path": str(tiny_zimage), "--output": str(tmp_path / "x.png")}
    given.pop(flags[0], None)
    argv = ["generate", "--model", "zimage", *(word for flag in given.items() for word in flag)]
    assert words in said_by(argv if len(flags) == 1 else [*argv, *flags], capsys)
    assert not list(tmp_path.iterdir())


async def test_a_port_in_use_is_one_sentence_and_code_2_and_disturbs_nothing(
    service: Served, stage: Path, diffusers_draws: Drawn
) -> None:
    port = service.url.rpartition(":")[2]
    done = await asyncio.to_thread(
        subprocess.run,
        [*EPE, "serve", "--stage-config", str(stage), "--port", port],
        env=user_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}: the port is in use; choose another with" in done.stderr
    picture = await service.draw(size="64x96", num_inference_steps=2)
    assert np.array_equal(picture.pixels, diffusers_draws(size="64x96", num_inference_steps=2))
