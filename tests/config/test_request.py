from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epe.config.request import resolve_request
from epe.errors import BadRequest
from epe.families import FAMILIES, Defaults
from epe.messages import OutputFormat, Request

ZIMAGE = FAMILIES["zimage"]


def test_a_prompt_is_enough():
    request = resolve_request(ZIMAGE, prompt="a red cube")
    assert (request.height, request.width, request.num_steps) == (1024, 1024, 50)
    assert (request.guidance_scale, request.seed, request.negative_prompt) == (5.0, 7, "")
    assert request.output_format is OutputFormat.PNG
    assert request.id


def test_two_requests_have_two_ids():
    assert resolve_request(ZIMAGE, prompt="").id != resolve_request(ZIMAGE, prompt="").id


def test_an_empty_prompt_is_legal_and_a_missing_one_is_not():
    assert resolve_request(ZIMAGE, prompt="").prompt == ""
    with pytest.raises(BadRequest, match="prompt is missing; an empty one is allowed") as caught:
        resolve_request(ZIMAGE, prompt=None)
    assert caught.value.param == "prompt"


def test_zero_is_a_value_and_not_a_gap():
    request = resolve_request(
        ZIMAGE, prompt="a", seed=0, guidance_scale=0.0, priority=0, output_compression=0
    )
    assert (request.seed, request.guidance_scale, request.output_compression) == (0, 0.0, 0)


def test_the_stage_defaults_go_before_the_family_defaults():
    defaults = Defaults(height=512, width=256, num_steps=4, guidance_scale=1.0, seed=3, deadline_s=2.0)
    request = resolve_request(ZIMAGE, prompt="a", width=320, defaults=defaults)
    assert (request.height, request.width, request.num_steps, request.seed) == (512, 320, 4, 3)
    assert request.deadline_s == 2.0


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("height", 1000, "height 1000 is not a multiple of 16; nearest are 992 and 1008"),
        ("width", 1001, "width 1001 is not a multiple of 16; nearest are 992 and 1008"),
        ("height", 0, "height 0 is not from 64 to 4096"),
        ("width", -16, "width -16 is not from 64 to 4096"),
        ("height", 8192, "height 8192 is not from 64 to 4096"),
        ("num_steps", 0, "num_steps 0 is not from 1 to 1000"),
        ("num_steps", -1, "num_steps -1 is not"),
        ("num_steps", 10**9, "num_steps 1000000000 is not from 1 to 1000"),
        ("seed", -1, "seed -1 is not from 0"),
        ("seed", 2**63, "seed 9223372036854775808 is not from 0"),
        ("guidance_scale", float("nan"), "guidance_scale nan is not a number"),
        ("guidance_scale", float("inf"), "guidance_scale inf is not a number"),
        ("guidance_scale", -1.0, "guidance_scale -1 is not a number from 0"),
        ("num_frames", 2, "num_frames 2 is not 1; zimage draws pictures"),
        ("max_sequence_length", 0, "max_sequence_length 0 is not from 1 to 512"),
        ("max_sequence_length", 513, "max_sequence_length 513 is not from 1 to 512"),
        ("deadline_s", 0.0, "deadline_s 0 is not a time above 0"),
        ("deadline_s", float("nan"), "deadline_s nan is not"),
        ("priority", 10**9, "priority 1000000000 is not"),
        ("output_compression", 101, "output_compression 101 is not from 0 to 100"),
        ("prompt", "broken \udc80", "prompt is not valid Unicode text (at character 7)"),
        ("negative_prompt", "\ud800", "negative_prompt is not valid Unicode text"),
        ("prompt", "x" * 10**6, "prompt has 1000000 characters; at most 65536 are allowed"),
    ],
)
def test_a_field_outside_its_limits_is_named(field, value, words):
    with pytest.raises(BadRequest) as caught:
        resolve_request(ZIMAGE, **{"prompt": "a", field: value})
    assert caught.value.param == field
    assert str(caught.value).startswith(words)


def test_a_field_is_called_what_the_client_calls_it():
    with pytest.raises(BadRequest, match=r"^num_inference_steps 0 is not") as caught:
        resolve_request(ZIMAGE, prompt="a", num_steps=0, names={"num_steps": "num_inference_steps"})
    assert caught.value.param == "num_inference_steps"


def test_a_negative_prompt_without_guidance_is_not_silently_ignored():
    with pytest.raises(BadRequest, match="no effect without guidance") as caught:
        resolve_request(ZIMAGE, prompt="a", negative_prompt="blurry", guidance_scale=0.0)
    assert caught.value.param == "negative_prompt"


def test_an_empty_negative_prompt_without_guidance_is_right():
    assert resolve_request(ZIMAGE, prompt="a", negative_prompt="", guidance_scale=0.0).negative_prompt == ""


@pytest.mark.parametrize(
    ("name", "flow_shift", "words"),
    [
        ("zimage", 3.0, "flow_shift is not used by Z-Image; leave it out"),
        ("wan", 0.0, "flow_shift 0 is not a number above 0, up to 100"),
        ("wan", float("nan"), "flow_shift nan is not a number"),
    ],
)
def test_a_flow_shift_that_cannot_be_used_is_refused(name, flow_shift, words):
    with pytest.raises(BadRequest, match=f"^{words}") as caught:
        resolve_request(FAMILIES[name], prompt="a", flow_shift=flow_shift)
    assert caught.value.param == "flow_shift"


def test_a_flow_shift_is_the_checkpoints_unless_it_is_given():
    assert resolve_request(FAMILIES["wan"], prompt="a").flow_shift is None
    assert resolve_request(FAMILIES["wan"], prompt="a", flow_shift=8).flow_shift == 8.0


@pytest.mark.parametrize(("frames", "near"), [(16, "13 and 17"), (0, "nearest is 1")])
def test_a_video_has_the_frames_that_its_vae_can_make(frames, near):
    with pytest.raises(BadRequest, match=f"num_frames {frames} is not of the form 4n\\+1; .*{near}"):
        resolve_request(FAMILIES["wan"], prompt="a", num_frames=frames)
    assert resolve_request(FAMILIES["wan"], prompt="a", num_frames=81).num_frames == 81


def test_a_video_is_not_longer_than_the_model_can_place():
    with pytest.raises(BadRequest, match="num_frames 40001 is more than 4093"):
        resolve_request(FAMILIES["wan"], prompt="a", num_frames=40001)


def test_a_video_is_an_mp4_of_16_frames_a_second_unless_asked_otherwise():
    plain = resolve_request(FAMILIES["wan"], prompt="a")
    assert (plain.output_format, plain.fps) == (OutputFormat.MP4, 16)
    other = resolve_request(FAMILIES["wan"], prompt="a", output_format=OutputFormat.WEBM, fps=24)
    assert (other.output_format, other.fps) == (OutputFormat.WEBM, 24)


@pytest.mark.parametrize(
    ("name", "field", "value", "words"),
    [
        ("wan", "output_format", OutputFormat.PNG, "png holds a picture; wan draws a video: mp4, webm"),
        ("zimage", "output_format", OutputFormat.MP4, "mp4 holds a video; zimage draws a picture: png, jpeg"),
        ("qwen-image", "num_steps", 1, "1 is not from 2 to 1000"),
        ("wan", "fps", 0, "0 is not from 1 to 240"),
        ("zimage", "fps", 16, "has no effect; zimage draws pictures"),
        ("wan", "height", 35, "35 is not from 64 to 4096"),
        ("wan", "width", 851, "851 is not a multiple of 16; nearest are 848 and 864"),
    ],
)
def test_what_could_not_be_drawn_or_written_is_refused_up_front(name, field, value, words):
    with pytest.raises(BadRequest, match=f"^{field} {words}") as caught:
        resolve_request(FAMILIES[name], prompt="a", **{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_accepts_its_own_defaults(name):
    assert resolve_request(FAMILIES[name], prompt="a").num_steps == FAMILIES[name].defaults.num_steps


def test_built_in_guidance_cannot_be_changed():
    with pytest.raises(BadRequest, match="built into minimax-h3"):
        resolve_request(FAMILIES["minimax-h3"], prompt="a", guidance_scale=3.0)


@pytest.mark.parametrize("name", ["flux1", "flux2-klein", "minimax-h3"])
def test_a_family_without_negative_prompts_refuses_one_and_takes_an_empty_one(name):
    with pytest.raises(BadRequest, match=r"negative_prompt is not used by .*; leave it out") as caught:
        resolve_request(FAMILIES[name], prompt="a", negative_prompt="blurry")
    assert caught.value.param == "negative_prompt"
    assert resolve_request(FAMILIES[name], prompt="a", negative_prompt="").negative_prompt == ""


def test_guidance_that_makes_no_second_branch_leaves_a_negative_prompt_without_effect():
    with pytest.raises(BadRequest, match="give a guidance scale above 1"):
        resolve_request(FAMILIES["wan"], prompt="a", negative_prompt="blurry", guidance_scale=1.0)


@given(
    prompt=st.text(),
    height=st.integers(-20, 5000),
    width=st.integers(-20, 5000),
    num_steps=st.integers(-2, 1100),
    guidance_scale=st.floats(),
    seed=st.integers(-5, 2**64),
    deadline_s=st.none() | st.floats(),
)
def test_whatever_is_accepted_can_travel(prompt, height, width, num_steps, guidance_scale, seed, deadline_s):
    try:
        request = resolve_request(
            ZIMAGE,
            prompt=prompt,
            height=height,
            width=width,
            num_steps=num_steps,
            guidance_scale=guidance_scale,
            seed=seed,
            deadline_s=deadline_s,
        )
    except BadRequest:
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Request) == request
    assert height % 16 == width % 16 == 0
