from __future__ import annotations

import yaml

from epe.config.checks import WITHOUT_EFFECT
from epe.config.describe import describe
from epe.config.load import build_stage


def test_a_description_loads_to_the_same_stage(settings):
    del settings["parallelism"]["vae"]
    stage = build_stage(settings, env={})
    assert build_stage(yaml.safe_load(describe(stage)), env={}) == stage


def test_a_description_holds_the_defaults_and_what_the_environment_chose(settings):
    stage = build_stage(settings, env={"EPE_AGKV_TRANSPORT": "nccl"})
    shown = yaml.safe_load(describe(stage))
    assert shown["parallelism"]["cp"]["agkv_transport"] == "nccl"
    assert shown["parallelism"]["scheduler"]["pulse_ms"] == 50
    assert shown["factory_args"]["num_steps"] == 20


def test_keys_without_effect_are_comments_alone(settings):
    settings["parallelism"]["vae"] = {"halo": 8}
    text = describe(build_stage(settings, env={}))
    assert f"# without effect: parallelism.vae.halo: {WITHOUT_EFFECT['parallelism.vae.halo']}" in text
    assert yaml.safe_load(text)["parallelism"]["vae"] == {"enabled": False, "degree": None}


def test_keys_of_videos_are_shown_for_families_that_draw_videos_alone(settings, checkpoint):
    del settings["parallelism"]["vae"]
    assert "video_codec" not in describe(build_stage(settings, env={}))
    (checkpoint / "model_index.json").write_text('{"_class_name": "WanPipeline"}')
    stage = build_stage({**settings, "factory": "wan", "video_codec": "h264"}, env={})
    shown = yaml.safe_load(describe(stage))
    assert (shown["video_codec"], shown["factory_args"]["num_frames"]) == ("h264", 17)
    assert build_stage(shown, env={}) == stage


def test_axes_that_the_family_does_not_have_are_not_shown(settings):
    assert "expert_parallel_degree" not in describe(build_stage(settings, env={}))
