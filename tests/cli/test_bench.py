"""`epe bench`: its table and files, and that a service takes its costs for its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch._dynamo.utils import counters

from epe import EmbeddedDiffusionRuntime
from epe.cli.main import run
from epe.cli.meeting import meeting_of
from epe.config.load import build_stage
from epe.config.request import resolve_request
from epe.launch.environment import Placement
from epe.models.catalog import make_tiny
from epe.runtime.bench import Row
from epe.runtime.bench_costs import costs_of
from epe.runtime.cost_file import CostFile
from epe.runtime.rival import Rival
from epe.simulator.costs import read_cost_set


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
    out, picture = tmp_path / "rows.json", tmp_path / "steps.png"
    flags = ["--sizes", "64x96", "--rounds", "2", "--steps", "1", "--against", "diffusers"]
    assert (
        run(["bench", "--stage-config", stage_file, *flags, "--json", str(out), "--plot", str(picture)]) == 0
    )
    (row,) = json.loads(out.read_bytes())
    assert (row["height"], row["width"], row["tokens"], row["conditions"]) == (64, 96, 24, 2)
    theirs = row["others_step_s"]["diffusers"]
    assert len(row["step_s"]) == len(theirs) == 2
    assert all(seconds > 0 for seconds in (*row["step_s"], *theirs, row["decode_s"]))
    assert picture.read_bytes().startswith(b"\x89PNG")
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["size", "ranks", "tokens"]
    assert line.split()[:3] == ["64x96", "1", "24"]


def test_videos_are_timed_with_their_frames(settings: dict[str, Any], tmp_path: Path) -> None:
    """All were timed with those of the stage, so a service measured its other sizes all the same."""
    make_tiny("wan", checkpoint := tmp_path / "wan")
    settings["factory"] = "wan"
    settings["factory_args"]["model_path"] = str(checkpoint)
    settings["parallelism"]["scheduler"]["warmup_resolutions"] = ["64x64x5", [64, 64, 1]]
    (file := tmp_path / "film.yaml").write_text(yaml.safe_dump(settings))
    costs, rows = tmp_path / "costs.json", tmp_path / "rows.json"
    flags = ["--stage-config", str(file), "--rounds", "1", "--steps", "1"]
    assert run(["bench", *flags, "--costs", str(costs), "--json", str(rows)]) == 0
    assert [row["num_frames"] for row in json.loads(rows.read_bytes())] == [5, 1]
    assert [size.num_frames for size in read_cost_set(str(costs)).sizes] == [5, 1]
    assert run(["bench", *flags, "--sizes", "64x80x9", "--json", str(rows)]) == 0
    (row,) = json.loads(rows.read_bytes())
    assert (row["height"], row["width"], row["num_frames"]) == (64, 80, 9)


async def test_a_service_takes_the_costs_for_its_own_and_measures_nothing(
    settings: dict[str, Any], stage_file: str, tmp_path: Path
) -> None:
    costs = tmp_path / "costs.json"
    flags = ["--rounds", "1", "--steps", "1", "--costs", str(costs)]
    assert run(["bench", "--stage-config", stage_file, *flags]) == 0
    settings["parallelism"]["scheduler"]["cost_file"] = str(costs)
    async with EmbeddedDiffusionRuntime.from_stage(settings, warm_up=True) as runtime:
        assert (await runtime.status()).costs.origin == "kept"


@pytest.mark.parametrize("cost_file", ["auto", "costs.json"])
def test_costs_without_a_file_are_where_a_service_of_the_stage_reads_them(
    settings: dict[str, Any],
    tmp_path: Path,
    cost_file: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They had to be moved by hand, or named in the stage file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    settings["parallelism"]["scheduler"]["cost_file"] = cost_file
    (file := tmp_path / "stage.yaml").write_text(yaml.safe_dump(settings))
    assert run(["bench", "--stage-config", str(file), "--rounds", "1", "--steps", "1", "--costs"]) == 0
    written = Path(
        capsys.readouterr().out.splitlines()[-1].removeprefix("a service of this stage starts with ")
    )
    assert CostFile(cost_file, name="zimage").read(read_cost_set(str(written)).fingerprint) is not None


def test_costs_without_a_file_are_refused_where_no_service_reads_them(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings["parallelism"]["scheduler"]["cost_file"] = "none"
    (file := tmp_path / "stage.yaml").write_text(yaml.safe_dump(settings))
    assert run(["bench", "--stage-config", str(file), "--costs"]) == 2
    assert "--costs: cost_file is none, so no service of this stage reads costs" in capsys.readouterr().err
    assert run(["bench", "--costs"]) == 2
    assert "--costs: the demo's service has as many ranks as suit the machine" in capsys.readouterr().err


def test_diffusers_compiled_has_the_weights_of_diffusers_as_it_is(settings: dict[str, Any]) -> None:
    torch.compiler.reset()
    stage = build_stage(settings)
    request = resolve_request(stage.family, prompt="x", num_steps=2, defaults=stage.request_defaults)
    plain = Rival(stage, torch.device("cpu"))
    compiled = plain.compiled(backend="eager")
    before = counters["stats"]["unique_graphs"]
    assert plain.step_s(request, num_steps=1) > 0
    assert counters["stats"]["unique_graphs"] == before
    assert compiled.step_s(request, num_steps=1) > 0
    assert counters["stats"]["unique_graphs"] > before
    theirs, others = (each._pipeline.transformer.parameters() for each in (plain, compiled))
    assert all(one is other for one, other in zip(theirs, others, strict=True))


def test_diffusers_is_compiled_for_more_sizes_than_torch_has_forms_of_a_block(
    settings: dict[str, Any],
) -> None:
    """A bench against diffusers ended at the fifth size, with 8 forms of a block."""
    torch.compiler.reset()
    stage = build_stage(settings)
    with torch._dynamo.config.patch(recompile_limit=2, accumulated_recompile_limit=256):
        compiled = Rival(stage, torch.device("cpu")).compiled(backend="eager")
        for side in (64, 80):
            request = resolve_request(
                stage.family, prompt="x", width=side, num_steps=2, defaults=stage.request_defaults
            )
            assert compiled.step_s(request, num_steps=1) > 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sizes", "64x65"], "--sizes: 65 is not a multiple of 16"),
        (["--sizes", "large"], "--sizes: expected a size such as"),
        (["--sizes", "9" * 5000], "--sizes: expected a size such as"),
        (["--sizes", "64,64x96,64x64"], "--sizes: 64x64 stands there twice"),
        (["--sizes", "64x96,64x96x1"], "--sizes: 64x96 stands there twice"),
        (["--sizes", "64x96x5"], "--sizes: 5 is not 1; zimage draws pictures"),
        (["--rounds", "0"], "--rounds: 0 is less than 1"),
        (["--rounds", "3", "--steps", "333"], "--steps: 3 rounds of 333 are more than 998 steps"),
        (["--json", "/dev/null"], "--json: /dev/null is a device or pipe"),
        (["--json", "/dev/stdout"], "--json: /dev/stdout is a device or pipe"),
        (["--json", "/dev/fd/1"], "--json: /dev/fd/1 is a device or pipe"),
        (["--costs", "x.json", "--json", "./x.json"], "--json: ./x.json is also --costs"),
        (["--against", "others"], "invalid choice: 'others'"),
        (["--plot", "steps.gif"], "--plot: steps.gif must end in .png, .svg, .pdf"),
    ],
)
def test_what_cannot_be_timed_is_refused_before_anything_is_loaded(
    stage_file: str, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "--stage-config", stage_file, *flags]) == 2
    assert words in capsys.readouterr().err


def test_a_size_that_has_no_memory_ends_a_bench_with_a_sentence(
    settings: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended with a traceback."""
    monkeypatch.setenv("EPE_FAULTS", "1")
    settings["faults"] = [{"kind": "oom", "stage": "denoise", "step": 2}]
    (file := tmp_path / "full.yaml").write_text(yaml.safe_dump(settings))
    assert run(["bench", "--stage-config", str(file), "--rounds", "1", "--steps", "1"]) == 1
    said = capsys.readouterr().err
    assert "epe: the device has no memory for 64x64; time smaller sizes (a want of memory was asked" in said


def test_a_stage_that_measures_no_size_is_refused_where_none_is_named(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings["parallelism"]["scheduler"]["warmup_resolutions"] = []
    (file := tmp_path / "none.yaml").write_text(yaml.safe_dump(settings))
    assert run(["bench", "--stage-config", str(file)]) == 2
    assert (
        "warmup_resolutions: is empty, so nothing would be timed; name sizes with" in capsys.readouterr().err
    )


def test_a_stage_of_wide_lanes_alone_is_timed_on_one_rank(settings: dict[str, Any], tmp_path: Path) -> None:
    """Nothing was timed, nothing was said, and it ended well."""
    settings["parallelism"]["scheduler"]["allowed_lane_widths"] = [2]
    (file := tmp_path / "wide.yaml").write_text(yaml.safe_dump({**settings, "gpu": [0, 1]}))
    flags = ["--stage-config", str(file), "--rounds", "1", "--steps", "1"]
    assert run(["bench", *flags, "--json", str(tmp_path / "rows.json")]) == 0
    (row,) = json.loads((tmp_path / "rows.json").read_bytes())
    assert row["num_ranks"] == 1


def test_costs_of_wide_lanes_alone_have_all_tasks(settings: dict[str, Any]) -> None:
    """They had no encode and no decode, so that a service measured all sizes again, and the simulator refused them."""
    settings["parallelism"]["scheduler"]["allowed_lane_widths"] = [2, 4]
    stage = build_stage({**settings, "gpu": [0, 1, 2, 3]})
    times = {"tokens": 1024, "conditions": 2, "encode_s": 1.0, "step_s": (2.0,), "decode_s": 3.0}
    rows = [Row(height=512, width=512, num_frames=1, num_ranks=width, **times) for width in (2, 4)]
    costs = costs_of(stage, rows, world_size=4)
    assert [(task.stage, task.width) for task in costs.tasks] == [
        ("encode", 1),
        ("denoise", 2),
        ("decode", 1),
        ("denoise", 4),
    ]
    assert costs.fault(costs.sizes[0].workload) is None


def test_a_rank_is_timed_on_the_gpu_that_its_stage_names() -> None:
    """It was timed on the first of the host, which a service may have."""
    assert meeting_of(Placement(), gpu=(3, 4), env={}).device_index == 3
    second = Placement(launcher="torchrun", rank=1, local_rank=1, world_size=2, local_world_size=2)
    assert meeting_of(second, gpu=(3, 4), env={}).device_index == 4
    assert meeting_of(second, gpu=(3, 4), env={"CUDA_VISIBLE_DEVICES": "4"}).device_index == 0


def test_costs_of_one_rank_are_not_written_for_a_stage_of_several(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "two.yaml").write_text(yaml.safe_dump({**settings, "gpu": [0, 1]}))
    assert run(["bench", "--stage-config", str(file), "--costs", str(tmp_path / "costs.json")]) == 2
    assert "--costs: costs of one rank fit no service of 2" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--json", "--costs", "--plot"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_timed(
    stage_file: str, tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "there.svg").mkdir()
    assert run(["bench", "--stage-config", stage_file, flag, str(folder)]) == 2
    assert run(["bench", "--stage-config", stage_file, flag, f"{stage_file}/x.svg"]) == 2
    assert run(["bench", "--stage-config", stage_file, flag, "/proc/x.svg"]) == 2
    said = capsys.readouterr()
    assert f"{flag}: the folder /proc cannot be written" in said.err, (
        "its owner has the rights, and yet cannot"
    )
    assert f"{flag}: {folder} is a folder" in said.err
    assert f"{flag}: the folder {stage_file} cannot be made" in said.err
    assert not said.out


@pytest.mark.parametrize("flag", ["--json", "--costs"])
def test_the_stage_file_is_not_written_over(
    stage_file: str, tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(stage_file).read_bytes()
    (link := tmp_path / "link.json").symlink_to(stage_file)
    for file in (stage_file, str(link)):
        assert run(["bench", "--stage-config", stage_file, flag, file]) == 2
        assert f"{flag}: {file} is also --stage-config; each needs a file" in capsys.readouterr().err
    assert Path(stage_file).read_bytes() == before
