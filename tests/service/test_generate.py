"""`epe generate` and the embedded example, in one process and under torchrun: the same pixels."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.service.conftest import Drawn
from tests.service.served import EPE, ROOT, TORCHRUN, user_environment

pytestmark = pytest.mark.world

FOUR = (*TORCHRUN, "--nproc-per-node=4")
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


async def run(*command: str) -> str:
    """What a command says on stdout; it must end well."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=user_environment(),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()
    assert "Traceback" not in err.decode()
    return out.decode()


def read(picture: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """The pixels, and the sidecar beside them."""
    pixels = np.asarray(Image.open(picture).convert("RGB"))
    return pixels, json.loads(picture.with_suffix(".json").read_text())


async def test_generate_draws_the_same_picture_on_one_rank_and_on_four(
    tiny_zimage: Path, tmp_path: Path, diffusers_draws: Drawn
) -> None:
    def generate(name: str, *flags: str) -> tuple[str, ...]:
        output = str(tmp_path / name)
        model = ("--model", "zimage", "--model-path", str(tiny_zimage), "--output", output)
        return ("generate", *model, *FLAGS, *flags)

    said = await asyncio.gather(
        run(*EPE, *generate("one.png")),
        run(*FOUR, "-m", "epe", *generate("four.png")),
        run(*EPE, *generate("together.png", "--no-cfg-parallel")),
    )
    one, about_one = read(tmp_path / "one.png")
    four, about_four = read(tmp_path / "four.png")
    together, about_together = read(tmp_path / "together.png")
    expected = diffusers_draws(**BODY)
    assert np.array_equal(one, four)
    assert np.array_equal(together, expected)
    # Each branch alone is within 1e-5 of diffusers in the latents: a pixel may be rounded the other way.
    assert np.abs(one.astype(int) - expected.astype(int)).max() <= 1
    for text, about in zip(said, (about_one, about_four, about_together), strict=True):
        check_sidecar(about)
        assert re.findall(r"elapsed_s=([0-9.]+)", text) == [f"{about['elapsed_s']:.3f}"]
    divided = ("world_size", "lane_width", "cp_backend", "cfg_parallel", "requested_cfg_parallel")
    assert [about_one[name] for name in divided] == [1, 1, None, False, True]
    assert [about_four[name] for name in divided] == [4, 4, "gloo", True, True]
    assert [about_together[name] for name in divided] == [1, 1, None, False, False]


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


async def test_the_embedded_example_draws_the_same_in_one_process_and_in_a_host_of_four(
    tiny_zimage: Path, tmp_path: Path
) -> None:
    example = (str(ROOT / "examples" / "epe_embedded.py"), str(tiny_zimage))
    one, four = tmp_path / "one", tmp_path / "four"
    said = await asyncio.gather(run(sys.executable, *example, str(one)), run(*FOUR, *example, str(four)))
    names = [f"embedded-{seed}.png" for seed in range(3)]
    assert [[text.count(name) for name in names] for text in said] == [[1, 1, 1]] * 2
    files = [(one / name).read_bytes() for name in names]
    assert files == [(four / name).read_bytes() for name in names]
    assert len(set(files)) == 3
