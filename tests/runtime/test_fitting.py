"""`epe cache fit` on a tiny model: what it writes makes strategies available that were not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from epe.cache import CacheRules, Unsupported, find_profile, read_profile, resolve
from epe.cli.main import run
from epe.messages import FreeCache, MagCache, MeanCache, TeaCache
from epe.models.catalog import load_adapter, make_tiny
from epe.models.loading import Loading
from epe.runtime.fitting import fit_profile
from tests.models.every_family import make_request
from tests.models.trajectories import solo

STRATEGIES = (MagCache(), MeanCache(fresh_steps=5), TeaCache(), FreeCache(fresh_budget=5))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "zimage"
    make_tiny("zimage", folder)
    return folder


def test_a_fitted_profile_makes_the_strategies_available(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cat on a chair\n\na green dog\n")
    model = ["--model", "zimage", "--model-path", str(checkpoint)]
    assert find_profile(checkpoint, "zimage") is None
    flags = [
        "--steps",
        "10",
        "--height",
        "96",
        "--width",
        "96",
        "--guidance-scale",
        "3",
        "--batch",
        "2",
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    target = tmp_path / "flexcache.json"
    target.write_text("{")  # one that is broken is said to be fitted anew
    assert run(["cache", "fit", *model, "--prompts", str(prompts), "--output", str(target), *flags]) == 0
    assert "supported: magcache, meancache, teacache, taylorseer, freecache, pab" in capsys.readouterr().out
    profile = read_profile(target, "zimage")
    assert "2 trajectories of 10 steps at 96 x 96" in profile.source
    for strategy in STRATEGIES:
        with pytest.raises(Unsupported):
            resolve(strategy, CacheRules(), num_steps=14)
        reuse = resolve(strategy, CacheRules(profile=profile), num_steps=14)
        assert reuse is not None
        assert len(reuse.computed) < 14


def test_one_strategys_part_is_fitted_alone(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, target = tmp_path / "prompts.txt", tmp_path / "flexcache.json"
    prompts.write_text("a cat")
    model = ["--model", "zimage", "--model-path", str(checkpoint), "--prompts", str(prompts)]
    flags = ["--height", "64", "--width", "64", "--device", "cpu", "--output", str(target)]
    for strategy, num_steps, known in (
        ("teacache", "4", "supported: teacache"),
        ("teacache", "5", "supported: teacache"),
        ("freecache", "6", "supported: magcache"),
        ("teacache", "4", "supported: magcache"),
    ):
        assert run(["cache", "fit", *model, *flags, "--steps", num_steps, "--strategy", strategy]) == 0
        assert known in capsys.readouterr().out
    profile = read_profile(target, "zimage")
    assert profile.tea
    assert len(profile.gram) == 6
    drawn = "epe cache fit: 1 trajectories of {} steps at 64 x 64, guidance 5, seeds from 0"
    assert profile.source == f"{drawn.format(6)}; teacache: {drawn.format(4)}"


def test_a_model_of_videos_is_fitted_with_as_few_frames_as_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It drew 81, whatever was wanted."""
    make_tiny("wan", checkpoint := tmp_path / "wan")
    (prompts := tmp_path / "prompts.txt").write_text("a cat")
    model = ["--model", "wan", "--model-path", str(checkpoint), "--prompts", str(prompts), "--device", "cpu"]
    flags = ["--steps", "4", "--height", "64", "--width", "64", "--frames", "5"]
    assert run(["cache", "fit", *model, *flags]) == 0
    assert "1 trajectories of 4 steps at 64 x 64 x 5" in capsys.readouterr().out


def test_what_a_profile_says_of_the_model_is_what_the_model_does(checkpoint: Path) -> None:
    """The fitted error of a plan is, to the first order, that of the latents which it draws."""
    adapter = load_adapter("zimage", checkpoint, Loading(device=torch.device("cpu")))
    request = make_request(checkpoint, num_steps=10, height=96, width=112, prompt="a cat")
    profile = fit_profile(adapter, [request], model="tiny", source="a test", num_probed=1)  # type: ignore[arg-type]
    whole = solo(adapter, request).tensors["latents"]
    away = []
    for budget in (8, 5, 3):
        reuse = resolve(FreeCache(fresh_budget=budget), CacheRules(profile=profile), num_steps=10)
        cached = make_request(checkpoint, num_steps=10, height=96, width=112, prompt="a cat", reuse=reuse)
        latents = solo(adapter, cached).tensors["latents"]
        away.append(float((latents - whole).norm() / whole.norm()))
    assert away[0] < away[1] < away[2] < 0.6


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("", "", "has no prompt"),
        ("a cat", "--steps 3", "too few to learn from"),
        ("a cat", "--frames 5", "5 is not 1; zimage draws pictures"),
        ("a cat", "--batch 0", "--batch: 0 is not 1 or more"),
        ("a cat", "--output /nowhere/x.json", "--output: there is no folder /nowhere"),
    ],
)
def test_what_cannot_be_fitted_is_said_before_any_work(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, flags: str, message: str
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(text)
    model = ["--model", "zimage", "--model-path", str(checkpoint)]
    assert run(["cache", "fit", *model, "--prompts", str(prompts), *flags.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_a_part_cannot_be_put_into_is_refused_before_any_work(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (prompts := tmp_path / "prompts.txt").write_text("a cat")
    (target := tmp_path / "flexcache.json").write_text("{")
    fit = [
        "cache",
        "fit",
        "--model-path",
        str(checkpoint),
        "--prompts",
        str(prompts),
        "--strategy",
        "teacache",
    ]
    assert run([*fit, "--output", str(target)]) == 2
    assert run([*fit, "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{target} is no profile of FlexCache" in said
    assert f"--output: {tmp_path} is a folder" in said
    assert "prompt" not in said
    assert target.read_text() == "{"
