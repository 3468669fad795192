from __future__ import annotations

import json
from copy import deepcopy

import pytest
import yaml

from epe.config.describe import describe
from epe.config.load import build_stage, load_stage
from epe.config.policy_keys import POLICIES
from epe.errors import BadSetting

NO_ENV: dict[str, str] = {}


def refusal(settings, *, env=NO_ENV) -> BadSetting:
    with pytest.raises(BadSetting) as caught:
        build_stage(settings, env=env)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(caught.value.path)
    return caught.value


def test_the_seeds_example_loads_and_is_complete(settings):
    before = deepcopy(settings)
    stage = build_stage(settings, env=NO_ENV)
    assert settings == before
    assert stage.gpu == (0, 1, 2, 3)
    assert stage.world_size == 4
    assert stage.family.name == "zimage"
    assert (stage.service.host, stage.service.port) == ("0.0.0.0", 18200)
    assert stage.parallelism.scheduler.warmup_resolutions == ((512, 512),)
    assert stage.parallelism.model.cfg_parallel_degree == 2
    assert (stage.device, stage.dtype, stage.numerics) == ("auto", "auto", "exact")
    assert stage.request_defaults.height == 512
    assert stage.request_defaults.num_steps == 20


def test_a_short_file_gets_its_defaults(checkpoint):
    short = {"name": "a", "factory": "zimage", "gpu": [0, 1, 2, 3, 4, 5]}
    stage = build_stage({**short, "factory_args": {"model_path": str(checkpoint)}}, env=NO_ENV)
    scheduler = stage.parallelism.scheduler
    assert stage.process == "a"
    assert stage.parallelism.cp.world_size == 6
    assert scheduler.allowed_lane_widths == (1, 2, 3, 6)
    assert scheduler.warmup_resolutions == ((1024, 1024),)
    assert scheduler.switch_allowed_until_step is None
    assert scheduler.pulse_ms == 50
    assert stage.factory_args.guidance_scale == 5.0
    assert stage.unused == ()


def test_without_a_host_the_service_stays_on_this_machine(settings):
    del settings["service"]
    service = build_stage(settings, env=NO_ENV).service
    assert (service.host, service.port) == ("127.0.0.1", 18200)


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("parallelism.cp.worldsize", "did you mean world_size?"),
        ("parallelism.cp.ulyses_degree", "did you mean ulysses_degree?"),
        ("parallelism.scheduler.pulse_step", "did you mean pulse_steps?"),
        ("service.hots", "did you mean host?"),
        ("factory_args.model", "did you mean model_path?"),
        ("parallelism.lanes", "known here are cp, vae, scheduler, model"),
        ("gpus", "did you mean gpu?"),
        ("unused", "known here are name, process"),
        ("model_path", "not known; write factory_args.model_path"),
        ("port", "not known; write service.port"),
        ("service.world_size", "not known; write parallelism.cp.world_size"),
        ("enabled", "not known; write parallelism.vae.enabled or capture.enabled"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_one(stage_with, path, near):
    with pytest.raises(BadSetting, match="not known") as caught:
        stage_with(path, 1)
    assert caught.value.path == path
    assert near in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("parallelism.sp", "parallelism.cp"),
        ("parallelism.tp", "parallelism.model.tensor_parallel_degree"),
        ("parallelism.chitu_pool", "parallelism.scheduler"),
        ("factory_args.attention_mode", "parallelism.cp.attention_mode"),
        ("factory_args.ulysses_degree", "parallelism.cp.ulysses_degree"),
        ("factory_args.cfg_parallel", "parallelism.model.cfg_parallel_degree"),
        ("factory_args.expert_parallel_degree", "parallelism.model.expert_parallel_degree"),
        ("factory_args.parallel_vae", "parallelism.vae.enabled"),
        ("factory_args.vae_parallel_degree", "parallelism.vae.degree"),
        ("factory_args.vae_parallel_halo", "parallelism.vae.halo"),
    ],
)
def test_an_old_key_names_its_new_place(stage_with, old, new):
    with pytest.raises(BadSetting, match=f"write {new}$") as caught:
        stage_with(old, {})
    assert caught.value.path == old


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("name", 3, "expected a text, got 3"),
        ("name", "", "expected a text of length >= 1, got ''"),
        ("gpu", 4, "expected a list, got 4"),
        ("gpu", [], "length >= 1, got a list of 0"),
        ("gpu", [0, -1], "expected a whole number >= 0, got -1"),
        ("parallelism", None, "expected a mapping, got nothing"),
        ("parallelism.cp", [1], "expected a mapping, got a list of 1"),
        ("parallelism.cp.world_size", True, "expected a whole number, got true"),
        ("parallelism.cp.world_size", 4.0, "expected a whole number, got 4.0"),
        ("parallelism.scheduler.warmup_steps", 2, "expected a whole number >= 3, got 2"),
        ("parallelism.scheduler.allowed_lane_widths", [], "length >= 1"),
        ("parallelism.scheduler.allowed_lane_widths", [0, 1], ">= 1, got 0"),
        ("parallelism.scheduler.admission", "refused", "'refused' is not one of accept, refuse"),
        ("parallelism.vae.enabled", "yes", "expected true or false, got 'yes'"),
        ("parallelism.model.cfg_parallel_degree", 3, "3 is not one of 1, 2"),
        ("factory_args.guidance_scale", "5", "expected a number, got '5'"),
        ("factory_args.guidance_scale", float("nan"), "got nan"),
        ("service.drain_s", float("inf"), "expected a finite number, got inf"),
        ("service.port", "18200", "expected a whole number, got '18200'"),
        ("service.port", 70000, "<= 65535, got 70000"),
        ("device", "gpu", "'gpu' is not one of auto, cpu, cuda"),
        ("dtype", "bf16", "'bf16' is not one of auto, float32, bfloat16, float16; did you mean"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(stage_with, path, value, words):
    with pytest.raises(BadSetting) as caught:
        stage_with(path, value)
    assert caught.value.path.startswith(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("path", ["name", "factory", "gpu", "factory_args.model_path"])
def test_a_missing_key_is_named(settings, path):
    *place, key = path.split(".")
    del (settings[place[0]] if place else settings)[key]
    error = refusal(settings)
    assert error.path == path
    assert "missing" in str(error)


def test_a_file_without_factory_args_lacks_the_model_path(settings):
    del settings["factory_args"]
    assert refusal(settings).path == "factory_args.model_path"


def test_an_unknown_family_is_named_with_the_known_ones(stage_with):
    with pytest.raises(BadSetting, match="did you mean zimage"):
        stage_with("factory", "z-image")


@pytest.mark.parametrize("factory", ["llada-image", "hunyuan-image3"])
def test_a_family_that_is_not_there_says_not_yet(stage_with, factory):
    with pytest.raises(BadSetting, match="not yet available; available are zimage") as caught:
        stage_with("factory", factory)
    assert caught.value.path == "factory"


def test_an_axis_of_another_family_is_an_error(stage_with):
    with pytest.raises(BadSetting, match=r"zimage has no such axis.*hunyuan-image3") as caught:
        stage_with("parallelism.model.expert_parallel_degree", 1)
    assert caught.value.path == "parallelism.model.expert_parallel_degree"


def test_an_argument_of_another_family_is_an_error(stage_with):
    with pytest.raises(
        BadSetting, match="zimage does not use this key; it belongs to hunyuan-image3"
    ) as caught:
        stage_with("factory_args.system_prompt", "none")
    assert caught.value.path == "factory_args.system_prompt"


@pytest.mark.parametrize(("path", "value"), [("factory_args.num_frames", 1), ("video_codec", "auto")])
def test_a_key_of_videos_is_an_error_for_a_family_that_draws_pictures(stage_with, path, value):
    with pytest.raises(BadSetting, match="zimage draws pictures") as caught:
        stage_with(path, value)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("parallelism.scheduler.balanced_k", False),
        ("terminal", False),
        ("record_timeline", True),
    ],
)
def test_what_is_not_there_yet_is_never_silently_accepted(stage_with, path, value):
    with pytest.raises(BadSetting, match="not yet available") as caught:
        stage_with(path, value)
    assert caught.value.path == path


def test_fast_numerics_are_not_for_planes(settings):
    settings["numerics"] = "fast"
    settings["parallelism"]["cp"] = {"world_size": 4}
    del settings["parallelism"]["scheduler"]["allowed_lane_widths"]
    assert build_stage(settings, env={}).numerics == "fast"
    settings["parallelism"]["cp"] = {"world_size": 2}
    with pytest.raises(BadSetting, match="a tensor_parallel_degree of 2 cuts in pieces") as caught:
        build_stage(settings, env={})
    assert caught.value.path == "numerics"


def test_fast_numerics_on_a_cpu_are_refused_before_ranks_are_started(settings):
    settings |= {"numerics": "fast", "device": "cpu"}
    with pytest.raises(
        BadSetting, match="numerics: fast numerics compile blocks for a GPU, and device is cpu"
    ):
        build_stage(settings, env={})


@pytest.mark.parametrize(
    ("width", "degree", "expected"),
    [(2, 2, (2, 2)), (None, 2, (2, 2)), (2, None, (2, 2)), (None, 1, (4, 1)), (None, None, (4, 1))],
)
def test_a_degree_that_is_not_given_follows_from_the_other_one(settings, width, degree, expected):
    del settings["parallelism"]["scheduler"]["allowed_lane_widths"]
    settings["parallelism"]["cp"] = {} if width is None else {"world_size": width}
    settings["parallelism"]["model"] = {} if degree is None else {"tensor_parallel_degree": degree}
    stage = build_stage(settings, env={})
    assert (stage.parallelism.cp.world_size, stage.num_planes) == expected
    # A lane spans the planes, so its width is that in one of them.
    assert stage.parallelism.scheduler.allowed_lane_widths[-1] == expected[0]


@pytest.mark.parametrize(
    ("width", "degree", "path", "words"),
    [
        (
            4,
            2,
            "parallelism.cp.world_size",
            "4 (times a tensor_parallel_degree of 2) must be the number of gpu",
        ),
        (None, 3, "parallelism.model.tensor_parallel_degree", "are proven; possible are 1, 2"),
        (3, None, "parallelism.cp.world_size", "3 (times a tensor_parallel_degree of 1)"),
    ],
)
def test_degrees_that_do_not_make_the_world_are_refused_with_what_is_possible(
    settings, width, degree, path, words
):
    settings["parallelism"]["cp"] = {} if width is None else {"world_size": width}
    settings["parallelism"]["model"] = {} if degree is None else {"tensor_parallel_degree": degree}
    error = refusal(settings)
    assert error.path == path
    assert words in str(error)


def test_more_planes_than_the_checkpoint_has_heads_are_refused_before_anything_starts(settings, checkpoint):
    (checkpoint / "transformer").mkdir()
    (checkpoint / "transformer" / "config.json").write_text('{"n_heads": 1}')
    del settings["parallelism"]["scheduler"]["allowed_lane_widths"]
    settings["parallelism"]["cp"] = {}
    settings["parallelism"]["model"] = {"tensor_parallel_degree": 2}
    error = refusal(settings)
    assert error.path == "parallelism.model.tensor_parallel_degree"
    assert "2 planes cannot share the 1 heads of this model; possible are 1 to 1" in str(error)


def test_a_world_may_be_wider_than_the_lanes_whose_pictures_are_proven(settings):
    settings |= {"gpu": list(range(16))}
    settings["parallelism"] = {"scheduler": {}}
    assert build_stage(settings).parallelism.scheduler.allowed_lane_widths == (1, 2, 4, 8)
    settings["parallelism"] = {"scheduler": {"allowed_lane_widths": [1, 16]}}
    error = refusal(settings)
    assert error.path == "parallelism.scheduler.allowed_lane_widths"
    assert "a lane of 16 ranks (in each plane) is wider than 8" in str(error)
    settings["parallelism"] = {"scheduler": {"policy": "static_cp"}}
    assert refusal(settings).path == "parallelism.scheduler.policy"


def test_more_planes_than_are_proven_are_refused(settings):
    settings["parallelism"] = {"model": {"tensor_parallel_degree": 4}}
    error = refusal(settings)
    assert error.path == "parallelism.model.tensor_parallel_degree"
    assert "4 planes are more than 2, the most whose pictures are proven" in str(error)


def test_a_family_without_planes_names_those_that_have_them(settings):
    settings["factory"] = "flux1"
    settings["parallelism"]["model"] = {"tensor_parallel_degree": 2}
    error = refusal(settings)
    assert error.path == "parallelism.model.tensor_parallel_degree"
    assert "flux1 has no such axis; families that have it are zimage, wan, " in str(error)


@pytest.mark.parametrize("method", ["agkv", "ulysses", "auto"])
def test_the_transport_in_force_is_that_of_the_method_in_use(settings, method):
    settings["parallelism"]["cp"] |= {"attention_mode": method}
    env = {"EPE_ULYSSES_TRANSPORT": "fast", "EPE_AGKV_TRANSPORT": "fast"}
    assert build_stage(settings, env=env).parallelism.cp.transport == "fast"
    assert build_stage(settings, env={}).parallelism.cp.transport == "auto"


def test_a_transport_of_the_other_method_is_an_error(stage_with):
    with pytest.raises(BadSetting, match="nccl is for ulysses, but the method is agkv by default") as caught:
        stage_with("parallelism.cp.ulysses_transport", "nccl")
    assert caught.value.path == "parallelism.cp.ulysses_transport"


def test_a_degree_of_the_other_method_is_an_error(stage_with):
    with pytest.raises(BadSetting, match="attention_mode is agkv"):
        stage_with("parallelism.cp.ulysses_degree", 2)


def test_ulysses_may_have_a_degree_up_to_the_world(settings):
    cp = settings["parallelism"]["cp"]
    cp.update(attention_mode="ulysses", ulysses_degree=4)
    assert build_stage(settings, env=NO_ENV).parallelism.cp.ulysses_degree == 4
    cp["ulysses_degree"] = 5
    error = refusal(settings)
    assert (error.path, "5 is more than the world of 4" in str(error)) == (
        "parallelism.cp.ulysses_degree",
        True,
    )


def test_the_transport_in_force_stands_at_the_method_in_use(settings):
    settings["parallelism"]["cp"]["attention_mode"] = "ulysses"
    env = {"EPE_AGKV_TRANSPORT": "auto", "EPE_ULYSSES_TRANSPORT": "nccl"}
    cp = build_stage(settings, env=env).parallelism.cp
    assert (cp.ulysses_transport, cp.agkv_transport) == ("nccl", "auto")


def test_flux_has_no_axis_of_its_own(settings):
    settings["factory"] = "flux1"
    settings["parallelism"]["model"] = {"cfg_parallel_degree": 2}
    assert "flux1 has no such axis" in str(refusal(settings))


def test_the_environment_is_below_the_file(stage_with, settings):
    env = {"EPE_AGKV_TRANSPORT": "nccl"}
    assert build_stage(settings, env=env).parallelism.cp.agkv_transport == "nccl"
    stage = stage_with("parallelism.cp.agkv_transport", "auto", env=env)
    assert stage.parallelism.cp.agkv_transport == "auto"


@pytest.mark.parametrize("world", [3, 8])
def test_the_world_must_be_the_number_of_gpus(stage_with, world):
    with pytest.raises(BadSetting, match=f"{world} .*number of gpu entries, which is 4") as caught:
        stage_with("parallelism.cp.world_size", world)
    assert caught.value.path == "parallelism.cp.world_size"


@pytest.mark.parametrize(
    ("path", "entries", "twice"),
    [
        ("gpu", [0, 1, 1, 2], "1"),
        ("gpu", [0, 0, 1, 2], "0"),
        ("parallelism.scheduler.warmup_resolutions", [512, [256, 512], "512x512"], "512x512"),
        ("cache.allowed", ["magcache", "magcache"], "magcache"),
        ("service.model_aliases", ["dall-e-3", "mine", "dall-e-3"], "dall-e-3"),
        ("service.cors_origins", ["http://a.b", "http://a.b"], "http://a.b"),
    ],
)
def test_what_is_named_twice_is_an_error(stage_with, path, entries, twice):
    """`epe bench` timed a size twice, and its cost file named it twice."""
    with pytest.raises(BadSetting, match=f"^{path}: {twice} stands there twice; name it once$"):
        stage_with(path, entries)


@pytest.mark.parametrize("widths", [[1], [3], [1, 3], [2, 4], [1, 2, 3, 4]])
def test_widths_may_be_any_numbers_up_to_the_world(stage_with, widths):
    stage = stage_with("parallelism.scheduler.allowed_lane_widths", widths)
    assert stage.parallelism.scheduler.allowed_lane_widths == tuple(widths)


@pytest.mark.parametrize(
    ("widths", "words"),
    [([2, 1], r"must be sorted.*\[1, 2\]"), ([1, 1], r"\[1\]"), ([1, 5], "5 is wider than the world of 4")],
)
def test_widths_out_of_order_or_too_wide_are_errors(stage_with, widths, words):
    with pytest.raises(BadSetting, match=words):
        stage_with("parallelism.scheduler.allowed_lane_widths", widths)


@pytest.mark.parametrize("policy", [*POLICIES, "my.policies.Nightly"])
def test_a_policy_is_built_in_or_a_dotted_path(stage_with, policy):
    assert stage_with("parallelism.scheduler.policy", policy).parallelism.scheduler.policy == policy


def test_an_unknown_policy_is_an_error(stage_with):
    with pytest.raises(BadSetting, match="'elastik' is not one of elastic, static_cp, static_dp"):
        stage_with("parallelism.scheduler.policy", "elastik")


def test_the_reference_spelling_of_the_policy_is_mapped(settings):
    scheduler = settings["parallelism"]["scheduler"]
    scheduler["schedule_strategy"] = "static_cp"
    assert refusal(settings).path == "parallelism.scheduler.schedule_strategy"
    del scheduler["policy"]
    assert build_stage(settings, env=NO_ENV).parallelism.scheduler.policy == "static_cp"


@pytest.mark.parametrize(
    ("given", "size"),
    [(512, (512, 512)), ("768x1344", (768, 1344)), ([256, 512], (256, 512)), ("512 X 256", (512, 256))],
)
def test_a_warmup_size_is_written_in_three_ways(stage_with, given, size):
    stage = stage_with("parallelism.scheduler.warmup_resolutions", [given])
    assert stage.parallelism.scheduler.warmup_resolutions == (size,)


@pytest.mark.parametrize(
    "path",
    [
        "parallelism.scheduler.rank_memory_mib",
        "capture.memory_mib",
        "prompts.memory_mib",
        "cache.memory_mib",
        "service.checkpoint_mb",
        "service.results_mb",
        "service.jobs.max_mb",
        "service.limits.body_kb",
    ],
)
def test_a_size_that_no_message_holds_as_bytes_is_refused(stage_with, path):
    """A rank whose memory was given in more bytes than 64 bits hold could not report that it was ready."""
    stage_with(path, 2**40)
    with pytest.raises(BadSetting, match=f"{path}: expected a whole number <= {2**40}, got {2**40 + 1}"):
        stage_with(path, 2**40 + 1)


def test_a_warm_up_of_more_than_anyone_may_ask_for_is_refused(stage_with):
    with pytest.raises(BadSetting, match="warmup_steps: 1001 is not from 1 to 1000"):
        stage_with("parallelism.scheduler.warmup_steps", 1001)
    with pytest.raises(BadSetting, match="max_batch: expected a whole number <= 64"):
        stage_with("parallelism.scheduler.max_batch", 2**62)


@pytest.mark.parametrize("given", ["128x192x17", [128, 192, 17], "128 x 192 X 17"])
def test_frames_of_a_video_that_is_measured_stand_behind_its_size(settings, checkpoint, given):
    """Pictures and videos of one family: a decode of as many tokens in other frames takes another time."""
    (checkpoint / "model_index.json").write_text(json.dumps({"_class_name": "WanPipeline"}))
    settings["factory"] = "wan"
    scheduler = settings["parallelism"]["scheduler"]
    scheduler["warmup_resolutions"] = [[96, 160], given]
    stage = build_stage(settings, env=NO_ENV)
    assert stage.warmup_sizes == ((96, 160, stage.factory_args.num_frames), (128, 192, 17))
    assert "- 128x192x17" in describe(stage)
    scheduler["warmup_resolutions"] = ["128x192x16"]
    assert refusal(settings).path == "parallelism.scheduler.warmup_resolutions[0]"


@pytest.mark.parametrize(
    "given", [500, "512", "axb", True, [64, 64, 3], [64] * 4, "64x64x1x1", None, 5.5, 0, -16, 8192]
)
def test_a_wrong_warmup_size_is_named_by_its_place(stage_with, given):
    with pytest.raises(BadSetting) as caught:
        stage_with("parallelism.scheduler.warmup_resolutions", [512, given])
    assert caught.value.path.startswith("parallelism.scheduler.warmup_resolutions[1]")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("default_height", 1000, "nearest are 992 and 1008"),
        ("default_width", 16384, "16384 is not from 64 to 4096"),
        ("num_steps", 100000, "100000 is not from 1 to 1000"),
        ("guidance_scale", 1000.0, "1000 is not a number from 0"),
    ],
)
def test_defaults_of_a_request_are_checked_at_load(stage_with, key, value, words):
    with pytest.raises(BadSetting, match=words) as caught:
        stage_with(f"factory_args.{key}", value)
    assert caught.value.path == f"factory_args.{key}"


def test_a_model_path_that_is_not_there_is_named(stage_with, tmp_path):
    with pytest.raises(BadSetting, match="there is no folder") as caught:
        stage_with("factory_args.model_path", str(tmp_path / "nowhere"))
    assert caught.value.path == "factory_args.model_path"


def test_a_folder_without_an_index_is_no_model(stage_with, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadSetting, match=r"holds no model_index.json"):
        stage_with("factory_args.model_path", str(tmp_path / "empty"))


def test_a_model_of_another_family_is_named(stage_with, checkpoint):
    (checkpoint / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    with pytest.raises(BadSetting, match="holds a FluxPipeline, but zimage needs a ZImagePipeline"):
        stage_with("name", "a")


def test_a_checkpoint_that_lacks_a_part_is_refused_before_it_is_loaded(stage_with, checkpoint):
    parts = {"vae": ["diffusers", "AutoencoderKL"], "tokenizer": ["t", "T"], "image_encoder": [None, None]}
    (checkpoint / "model_index.json").write_text(json.dumps({"_class_name": "ZImagePipeline", **parts}))
    (checkpoint / "tokenizer").mkdir()
    with pytest.raises(BadSetting, match=r"lacks vae, which its model_index\.json names") as caught:
        stage_with("name", "a")
    assert caught.value.path == "factory_args.model_path"


@pytest.mark.parametrize("text", ["", "[]", "{}", "{broken", '{"_class_name": 3}'])
def test_a_broken_index_is_an_error(stage_with, checkpoint, text):
    (checkpoint / "model_index.json").write_text(text)
    with pytest.raises(BadSetting) as caught:
        stage_with("name", "a")
    assert caught.value.path == "factory_args.model_path"


def test_keys_without_effect_are_noted(settings):
    settings["parallelism"]["vae"] = {"halo": 8, "enabled": True}
    settings["process"] = "other"
    unused = build_stage(settings, env=NO_ENV).unused
    assert [note.partition(":")[0] for note in unused] == [
        "parallelism.vae.halo",
        "process",
    ]


@pytest.mark.parametrize(
    ("policy", "vae", "widths"),
    [
        ("elastic", {}, (1,)),  # Z-Image decodes whole unless asked otherwise
        ("elastic", {"enabled": True}, (1, 2, 4)),
        ("static_cp", {"enabled": True}, (1, 2, 4)),
        ("static_cp", {"enabled": True, "degree": 2}, (2,)),
        ("static_cp", {"enabled": True, "degree": 1}, (1,)),
        ("static_dp", {"enabled": True}, (1,)),
    ],
)
def test_the_widths_of_a_decode_follow_from_the_policy_and_the_degree(settings, policy, vae, widths):
    settings["parallelism"] |= {"vae": vae, "scheduler": {"policy": policy}}
    stage = build_stage(settings, env=NO_ENV)
    assert stage.decode_widths == widths
    assert stage.decodes_in_bands == (widths != (1,))


def test_other_families_decode_in_bands_unless_asked_otherwise(settings, checkpoint):
    (checkpoint / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    settings |= {"factory": "flux1", "parallelism": {}}
    assert build_stage(settings, env=NO_ENV).decodes_in_bands
    settings["gpu"] = [0]
    assert not build_stage(settings, env=NO_ENV).decodes_in_bands, "one rank has nobody to decode with"


@pytest.mark.parametrize(
    ("policy", "vae", "words"),
    [
        ("elastic", {"enabled": True, "degree": 2}, "needs the policy static_cp, and the policy is elastic"),
        ("static_cp", {"enabled": False, "degree": 2}, "where parallelism.vae.enabled is false"),
        ("static_cp", {"enabled": True, "degree": 5}, "5 is more than the 4 ranks"),
    ],
)
def test_a_degree_of_decoding_that_cannot_be_is_refused(settings, policy, vae, words):
    settings["parallelism"] |= {"vae": vae, "scheduler": {"policy": policy}}
    error = refusal(settings)
    assert error.path == "parallelism.vae.degree"
    assert words in str(error)


def test_a_default_deadline_is_part_of_the_request_defaults(stage_with):
    stage = stage_with("parallelism.scheduler.default_deadline_ms", 1500)
    assert stage.request_defaults.deadline_s == 1.5


def test_a_file_is_read_from_disk(settings, tmp_path):
    file = tmp_path / "stage.yaml"
    file.write_text(yaml.safe_dump(settings))
    assert load_stage(file, env=NO_ENV) == build_stage(settings, env=NO_ENV)
