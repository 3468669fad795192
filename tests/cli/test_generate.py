from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest

from epe.cli import generate
from epe.cli.generate import build_options
from epe.cli.main import run
from epe.config.generate import GenerateOptions
from epe.errors import BadInput, BadRequest, BadSetting
from epe.families import FAMILIES
from epe.launch.gpus import check_enough
from epe.messages import OutputFormat

NO_ENV: dict[str, str] = {}


def test_the_least_command_line_gets_the_family_defaults(base):
    options = build_options(base, env=NO_ENV)
    request = options.request
    assert (request.height, request.width, request.num_steps) == (1024, 1024, 50)
    assert (request.guidance_scale, request.seed) == (5.0, 7)
    assert (options.device, options.dtype) == ("auto", "auto")
    assert options.cfg_parallel_degree == 2
    assert options.parallel_vae is None
    assert options.sidecar.endswith("/out/x.json")
    assert options.flags == {
        "model": "zimage",
        "model_path": base[3],
        "prompt": "a cube",
        "output": base[7],
    }


def test_options_travel_as_data(base):
    options = build_options([*base, "--steps", "4", "--no-cfg-parallel"], env=NO_ENV)
    assert msgspec.json.decode(msgspec.json.encode(options), type=GenerateOptions) == options


def test_every_flag_arrives(base):
    flags = "--height 256 --width 512 --steps 4 --seed 0 --guidance-scale 0 --device cpu --dtype float32"
    more = "--no-cfg-parallel --local-files-only --no-parallel-vae --vae-parallel-halo 4 --cp-backend nccl"
    options = build_options([*base, *flags.split(), *more.split()], env=NO_ENV)
    request = options.request
    assert (request.height, request.width, request.num_steps, request.seed) == (256, 512, 4, 0)
    assert request.guidance_scale == 0.0
    assert (options.device, options.dtype) == ("cpu", "float32")
    assert options.cfg_parallel_degree == 1
    assert options.parallel_vae is False
    assert options.vae_parallel_halo == 4
    assert options.transport.backend == "nccl"
    assert options.flags["cfg_parallel"] is False
    assert options.flags["local_files_only"] is True


@pytest.mark.parametrize(
    ("flags", "degree"),
    [
        ("", 2),
        ("--cfg-parallel", 2),
        ("--no-cfg-parallel", 1),
        ("--cfg-parallel-degree 1", 1),
        ("--cfg-parallel-degree 2", 2),
        ("--cfg-parallel-degree 1 --no-cfg-parallel", 1),
    ],
)
def test_guidance_is_split_as_either_form_of_the_flag_says(base, flags, degree):
    assert build_options([*base, *flags.split()], env=NO_ENV).cfg_parallel_degree == degree


def test_a_negative_prompt_arrives(base):
    assert build_options([*base, "--negative-prompt", "blur"], env=NO_ENV).request.negative_prompt == "blur"


def test_an_empty_prompt_is_legal(base):
    assert build_options([*base, "--prompt", ""], env=NO_ENV).request.prompt == ""


def test_the_environment_chooses_the_transport_below_the_flags(base):
    env = {"EPE_AGKV_TRANSPORT": "nccl"}
    assert build_options(base, env=env).transport.backend == "nccl"
    assert build_options([*base, "--agkv-transport", "auto"], env=env).transport.backend == "auto"


@pytest.mark.parametrize(
    ("name", "file_format"),
    [
        ("x.png", OutputFormat.PNG),
        ("x.JPG", OutputFormat.JPEG),
        ("a.b.jpeg", OutputFormat.JPEG),
        ("x.webp", OutputFormat.WEBP),
    ],
)
def test_the_name_of_the_output_says_its_format(base, tmp_path, name, file_format):
    options = build_options([*base, "--output", str(tmp_path / name)], env=NO_ENV)
    assert options.request.output_format is file_format
    assert Path(options.sidecar).name == f"{name.rpartition('.')[0]}.json"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--height 1000", "--height 1000 is not a multiple of 16; nearest are 992 and 1008"),
        ("--width 99999", "--width 99999 is not from 64 to 4096"),
        ("--steps 0", "--steps 0 is not from 1 to 1000"),
        ("--seed -1", "--seed -1 is not from 0"),
        ("--guidance-scale nan", "--guidance-scale nan is not a number"),
        ("--guidance-scale 0 --negative-prompt blur", "--negative-prompt has no effect without guidance"),
    ],
)
def test_a_request_outside_the_limits_is_named_by_its_flag(base, flags, words):
    with pytest.raises(BadRequest) as caught:
        build_options([*base, *flags.split()], env=NO_ENV)
    assert str(caught.value).startswith(words)
    assert caught.value.param in flags


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--steps 2.5", "--steps: '2.5' is not a whole number"),
        ("--guidance-scale much", "--guidance-scale: 'much' is not a number"),
        ("--heigth 512", "--heigth is not known; did you mean --height?"),
        ("--heig 512", "--heig is not known; did you mean --height?"),
        ("--num-inference-steps 4", "--num-inference-steps is not known; did you mean --steps?"),
        ("--dtype bf16", "--dtype: invalid choice: 'bf16'"),
        ("--true-cfg-scale 4", "--true-cfg-scale is not known"),
        ("--frames 17", "--frames is not known"),
        ("--height", "--height: expected one argument"),
        (
            "--model flux1 --cfg-parallel",
            "--cfg-parallel is not known for flux1; families that have it: zimage, qwen-image, wan",
        ),
        (
            "--model qwen-image --tensor-parallel-degree 2",
            "not known for qwen-image; families that have it: zimage, wan",
        ),
        ("--flow-shift=8", "--flow-shift is not known for zimage; families that have it: wan"),
    ],
)
def test_a_wrong_flag_is_one_sentence(base, flags, words):
    with pytest.raises(BadInput) as caught:
        build_options([*base, *flags.split()], env=NO_ENV)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "path", "words"),
    [
        ("--tensor-parallel-degree 0", "--tensor-parallel-degree", "0 is not 1 or more"),
        ("--vae-parallel-halo -1", "--vae-parallel-halo", "-1 is not 0 or more"),
        ("--ulysses-degree 2", "--ulysses-degree", "the method is agkv by default"),
        ("--cp-method ulysses --ulysses-degree 0", "--ulysses-degree", "0 is not 1 or more"),
        ("--ulysses-transport nccl", "--ulysses-transport", "the method is agkv by default"),
        ("--cp-method agkv --attention-mode ulysses", "--attention-mode", "--cp-method agkv"),
        ("--cfg-parallel-degree 3", "--cfg-parallel-degree", "3 is not 1 or 2"),
        (
            "--cfg-parallel-degree 2 --no-cfg-parallel",
            "--cfg-parallel-degree",
            "2 contradicts --no-cfg-parallel",
        ),
        ("--cfg-parallel-degree 1 --cfg-parallel", "--cfg-parallel-degree", "1 contradicts --cfg-parallel"),
        ("--model minimax-h3", "--model", "'minimax-h3' is not yet available"),
        ("--model zimag", "--model", "did you mean zimage?"),
        ("--output x.gif", "--output", "does not end in one of .png, .jpg, .jpeg, .webp"),
        ("--output x", "--output", "does not end in"),
        ("--model-path /nowhere/at/all", "--model-path", "there is no folder /nowhere/at/all"),
    ],
)
def test_a_setting_that_cannot_be_is_named_by_its_flag(base, flags, path, words):
    with pytest.raises(BadSetting) as caught:
        build_options([*base, *flags.split()], env=NO_ENV)
    assert caught.value.path == path
    assert words in str(caught.value)


@pytest.mark.parametrize("degree", [1, 2])
def test_a_tensor_parallel_degree_reaches_the_options(base, degree):
    options = build_options([*base, "--tensor-parallel-degree", str(degree)], env=NO_ENV)
    assert options.tensor_parallel_degree == degree


def test_planes_that_do_not_divide_the_world_are_refused(base, monkeypatch, capsys):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29512")
    assert run(["generate", *base, "--tensor-parallel-degree", "2"]) == 2
    assert "--tensor-parallel-degree: 2 planes do not divide a world of 3" in capsys.readouterr().err


def test_more_planes_than_heads_are_refused_with_the_flag(base, checkpoint):
    (checkpoint / "transformer").mkdir()
    (checkpoint / "transformer" / "config.json").write_text('{"n_heads": 1}')
    with pytest.raises(BadSetting, match="possible are 1 to 1") as caught:
        build_options([*base, "--tensor-parallel-degree", "2"], env=NO_ENV)
    assert caught.value.path == "--tensor-parallel-degree"


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["--model", "flux1", "--prompt", "a"], "--model-path"),
        (["--model-path", "/somewhere", "--prompt", "a"], "--model"),
    ],
)
def test_a_flag_that_is_missing_is_named(argv, flag):
    with pytest.raises(BadSetting, match="must be given") as caught:
        build_options(argv, env=NO_ENV)
    assert caught.value.path == flag


def test_a_missing_prompt_is_named(base):
    at = base.index("--prompt")
    with pytest.raises(BadRequest, match="--prompt is missing; an empty one is allowed"):
        build_options(base[:at] + base[at + 2 :], env=NO_ENV)


def test_an_output_below_a_file_is_refused(base, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match=r"cannot be made, because .*file is a file"):
        build_options([*base, "--output", str(tmp_path / "file" / "x.png")], env=NO_ENV)


def test_a_name_that_no_file_can_have_is_refused(base, tmp_path):
    with pytest.raises(BadSetting, match="File name too long"):
        build_options([*base, "--output", str(tmp_path / f"{'a' * 300}.png")], env=NO_ENV)


def test_an_output_that_is_a_folder_is_refused(base, tmp_path):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(BadSetting, match=r"x\.json is a folder"):
        build_options([*base, "--output", str(tmp_path / "x.png")], env=NO_ENV)


def test_checking_leaves_nothing_behind(base, tmp_path):
    before = sorted(tmp_path.iterdir())
    build_options(base, env=NO_ENV)
    assert sorted(tmp_path.iterdir()) == before


def test_the_help_of_a_family_shows_its_flags_and_defaults_alone(capsys):
    with pytest.raises(SystemExit):
        run(["generate", "--model", "zimage", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Draw one picture with Z-Image" in text
    assert "denoising steps (default 50)" in text
    assert "--guidance-scale" in text
    assert "--frames" not in text
    assert "--true-cfg-scale" not in text


def test_a_video_gets_its_familys_defaults(film):
    options = build_options(film, env=NO_ENV)
    request = options.request
    assert (request.num_frames, request.fps, request.output_format) == (17, 16, OutputFormat.MP4)
    assert options.video_codec == "auto"


def test_the_flags_of_a_video_arrive(film, tmp_path):
    flags = ["--frames", "9", "--fps", "24", "--video-codec", "vp9", "--output", str(tmp_path / "x.webm")]
    options = build_options([*film, *flags], env=NO_ENV)
    request = options.request
    assert (request.num_frames, request.fps, request.output_format) == (9, 24, OutputFormat.WEBM)
    assert options.video_codec == "vp9"


@pytest.mark.parametrize(
    ("flags", "path", "words"),
    [
        (["--frames", "16"], "--frames", "16 is not of the form 4n+1; nearest are 13 and 17"),
        (["--fps", "0"], "--fps", "0 is not from 1 to 240"),
        (["--video-codec", "av2"], "--video-codec", "invalid choice: 'av2'"),
        (["--output", "x.png"], "--output", "does not end in one of .mp4, .webm"),
        (["--output", "x.webm", "--video-codec", "h264"], "--video-codec", "a .webm file holds no h264"),
    ],
)
def test_a_video_that_could_not_be_written_is_refused_before_any_work(film, flags, path, words):
    with pytest.raises(BadInput) as caught:
        build_options([*film, *flags], env=NO_ENV)
    assert words in str(caught.value)
    assert path in str(caught.value)


def test_a_flow_shift_reaches_the_request_of_a_family_that_has_one(film):
    assert build_options([*film, "--flow-shift", "8"], env=NO_ENV).request.flow_shift == 8.0
    with pytest.raises(BadRequest, match="--flow-shift 0 is not a number above 0"):
        build_options([*film, "--flow-shift", "0"], env=NO_ENV)


def test_pictures_have_no_flags_of_videos(base):
    for flag in ("--fps", "--video-codec", "--flow-shift"):
        with pytest.raises(BadInput, match=f"{flag} is not known"):
            build_options([*base, flag, "1"], env=NO_ENV)


def test_the_help_of_a_family_without_negative_prompts_shows_no_flag_for_one(capsys):
    with pytest.raises(SystemExit):
        run(["generate", "--model", "flux1", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Draw one picture with FLUX.1" in text
    assert "--guidance-scale" in text
    assert "how closely to follow the prompt (default 3.5)" in text
    assert "--negative-prompt" not in text
    assert "--cfg-parallel" not in text


def test_ulysses_and_its_degree_reach_the_options(base):
    options = build_options([*base, "--cp-method", "ulysses", "--ulysses-degree", "2"], env=NO_ENV)
    assert (options.transport.method, options.transport.ulysses_degree) == ("ulysses", 2)


def test_the_help_of_another_family_shows_other_flags(capsys):
    with pytest.raises(SystemExit):
        run(["generate", "--help", "--model=qwen-image"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Draw one picture with Qwen-Image" in text
    assert "--true-cfg-scale" in text
    assert "--fps" not in text
    assert "--tensor-parallel-degree" not in text
    assert "denoising steps (default 4)" in text


def test_klein_has_the_switch_of_decoding_in_bands_alone(capsys):
    with pytest.raises(SystemExit):
        run(["generate", "--model", "flux2-klein", "--help"])
    text = capsys.readouterr().out
    assert "--parallel-vae" in text
    assert "--vae-parallel-halo" not in text


def test_the_help_of_a_family_that_is_not_there_says_so(capsys):
    with pytest.raises(SystemExit):
        run(["generate", "--help", "--model=llada-image"])
    assert "llada-image is not yet available" in " ".join(capsys.readouterr().out.split())


def test_bad_input_ends_the_command_with_exit_code_2(base, capsys):
    assert run(["generate", *base, "--height", "1000"]) == 2
    assert capsys.readouterr().err == "epe: --height 1000 is not a multiple of 16; nearest are 992 and 1008\n"


@pytest.mark.parametrize(
    ("flags", "variable", "named"),
    [
        ("--device cuda", "", "--device: cuda was asked for"),
        ("--cp-backend fast", "", "--cp-backend: fast needs a GPU for each rank"),
        ("--cp-method ulysses --ulysses-transport nccl", "", "--ulysses-transport: nccl needs a GPU"),
        ("--cp-backend auto --agkv-transport fast", "", "--agkv-transport: fast needs a GPU"),
        ("", "EPE_AGKV_TRANSPORT", "EPE_AGKV_TRANSPORT: fast needs a GPU"),
    ],
)
def test_what_needs_gpus_is_refused_by_its_flag_before_ranks_meet(
    base, capsys, monkeypatch, flags, variable, named
):
    """Rank 0 found it and named a key that nobody had written; the others told of a rank that had gone."""
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    if variable:
        monkeypatch.setenv(variable, "fast")
    without = partial(check_enough, driver=Path("/nothing"), ask=lambda env: 0)
    monkeypatch.setattr(generate, "check_enough", without)
    assert run(["generate", *base, *flags.split()]) == 2
    assert capsys.readouterr().err.startswith(f"epe: {named}")


def test_the_help_of_families_that_are_there_says_of_nothing_that_it_is_not(capsys):
    """It said so of the fast backend when that had come."""
    for each in (family.name for family in FAMILIES.values() if family.available):
        with pytest.raises(SystemExit):
            run(["generate", "--model", each, "--help"])
        assert "not yet available" not in " ".join(capsys.readouterr().out.split())
