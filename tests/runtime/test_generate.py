"""`epe generate` below its flags."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from epe.cli.generate import build_options
from epe.config.generate import GenerateOptions
from epe.errors import BadSetting
from epe.families import FAMILIES, Family
from epe.messages import Progress, Stage
from epe.runtime import generate
from epe.runtime.generate import Meeting, run_generate, stage_of

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


def small(checkpoint: Path, output: Path, *more: str, steps: int) -> GenerateOptions:
    size = ("--height", "64", "--width", "64", "--steps", str(steps), *more)
    given = ("--model", "zimage", "--model-path", str(checkpoint), "--prompt", "a", "--output", str(output))
    return build_options([*given, *size], env={})


async def test_an_interrupted_command_does_not_draw_to_the_end(
    tiny_zimage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Progress] = []
    draws = asyncio.Event()

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if progress.stage is Stage.DENOISE:
            draws.set()

    monkeypatch.setattr(generate, "progress_bar", lambda: watch)
    options = small(tiny_zimage, tmp_path / "x.png", steps=1000)
    drawing = asyncio.create_task(generate._generate(options, Meeting()))
    async with asyncio.timeout(60):
        await draws.wait()
        drawing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drawing
    assert seen[-1].step < 1000
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("flags", "computed"),
    [
        ("", None),
        ("taylorseer --taylorseer-fresh-threshold 2", 7),
        ("teacache --teacache-coefficients 0.15", 6),
        ("pab --pab-joint-interval 4", 4),
    ],
)
def test_the_sidecar_says_what_flexcache_did(
    tiny_zimage: Path, tmp_path: Path, flags: str, computed: int | None
) -> None:
    asked = ("--cache-strategy", *flags.split()) if flags else ()
    run_generate(small(tiny_zimage, tmp_path / "x.png", *asked, steps=10), Meeting())
    cache = json.loads((tmp_path / "x.json").read_text())["cache"]
    if computed is None:
        assert cache is None
        return
    assert cache["settings"]["strategy"] == flags.split()[0]
    assert (cache["computed_steps"], cache["reused_steps"]) == (computed, 10 - computed)
    assert cache["kept_bytes"] > 0


def test_a_picture_that_cannot_be_written_is_an_error_with_a_reason(
    tiny_zimage: Path, tmp_path: Path
) -> None:
    options = small(tiny_zimage, tmp_path / "out" / "x.png", steps=1)
    (tmp_path / "out").write_text("here was nothing when the flags were read")
    with pytest.raises(BadSetting, match="cannot be written: File exists") as caught:
        run_generate(options, Meeting())
    assert caught.value.path == "--output"
