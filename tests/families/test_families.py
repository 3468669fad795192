from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epe.errors import BadSetting
from epe.families import FAMILIES, Family, FrameRule, available_family, family

NAMES = (
    "zimage",
    "flux1",
    "flux2-klein",
    "qwen-image",
    "wan",
    "minimax-h3",
    "llada-image",
    "hunyuan-image3",
)


def test_there_are_exactly_the_eight_families():
    assert tuple(FAMILIES) == NAMES
    assert all(each.name == name for name, each in FAMILIES.items())


def test_an_available_family_has_axes_and_another_has_plans_alone():
    for each in FAMILIES.values():
        assert bool(each.axes) is each.available
        assert not set(each.axes) & set(each.planned_axes)
        assert each.owns("cp")


@pytest.mark.parametrize("name", NAMES)
def test_a_family_keeps_its_own_limits(name):
    each = FAMILIES[name]
    own = each.defaults
    for side in (own.height, own.width):
        assert side % each.side_multiple == 0
        assert each.min_side <= side <= each.max_side
    assert each.min_side % each.side_multiple == each.max_side % each.side_multiple == 0
    assert each.frames.allows(own.num_frames)
    assert own.num_frames <= each.max_frames
    assert each.frames.allows(each.max_frames)
    assert own.max_sequence_length <= each.max_text_tokens
    assert each.side_multiple % each.patch == 0
    assert each.patch % each.latent_scale == 0


def test_a_family_travels_as_data():
    for each in FAMILIES.values():
        assert msgspec.json.decode(msgspec.json.encode(each), type=Family) == each


def test_an_unknown_family_is_named_with_the_nearest_one():
    with pytest.raises(BadSetting, match="'qwen-img' is not known; did you mean qwen-image"):
        family("qwen-img")


def test_a_family_that_is_not_there_says_so():
    with pytest.raises(
        BadSetting, match=r"--model: .*'hunyuan-image3' is not yet available; available are zimage"
    ):
        available_family("hunyuan-image3", path="--model")
    assert available_family("zimage") is FAMILIES["zimage"]


@pytest.mark.parametrize(
    ("name", "height", "width", "num_frames", "num_tokens"),
    [
        ("zimage", 1024, 1024, 1, 4096),
        ("zimage", 1024, 720, 1, 64 * 45),
        ("flux1", 512, 512, 1, 1024),
        ("wan", 480, 832, 81, 21 * 30 * 52),
        ("wan", 480, 832, 1, 30 * 52),
        # The figures of the released default job: 37,296 video rows.
        ("minimax-h3", 768, 1344, 124, 37296),
        ("llada-image", 1024, 1024, 1, 4096),
        ("hunyuan-image3", 1024, 1024, 1, 4096),
    ],
)
def test_the_tokens_of_a_size_are_counted(name, height, width, num_frames, num_tokens):
    assert FAMILIES[name].num_tokens(height=height, width=width, num_frames=num_frames) == num_tokens


@pytest.mark.parametrize(
    ("name", "guidance_scale", "num_conditions"),
    [
        ("zimage", 0.0, 1),
        ("zimage", 0.5, 2),
        ("flux1", 3.5, 1),
        ("flux2-klein", 1.0, 1),
        ("flux2-klein", 1.5, 2),
        ("qwen-image", 4.0, 2),
        ("wan", 1.0, 1),
        ("wan", 6.0, 2),
        ("minimax-h3", 0.0, 1),
    ],
)
def test_a_family_says_what_guidance_makes_a_second_branch(name, guidance_scale, num_conditions):
    assert FAMILIES[name].num_conditions(guidance_scale) == num_conditions


def test_the_bytes_that_migrate_are_counted():
    assert FAMILIES["zimage"].state_bytes(height=1024, width=1024) == 4 * 16 * 128 * 128
    assert FAMILIES["flux1"].state_bytes(height=1024, width=1024) == 2**20 + 4 * 2**20
    assert FAMILIES["llada-image"].state_bytes(height=1024, width=1024) == 2 * 2**20
    # The latents, two predictions and the last sample, in fp32, and a prompt.
    latents = 4 * 16 * 5 * 60 * 104
    assert FAMILIES["wan"].state_bytes(height=480, width=832, num_frames=17) == 4 * latents + 4 * 2**20


@given(
    base=st.integers(1, 10),
    step=st.integers(0, 20),
    latent_step=st.integers(1, 5),
    num_frames=st.integers(-5, 500),
)
def test_the_nearest_frame_counts_are_allowed_and_enclose_the_given_one(base, step, latent_step, num_frames):
    rule = FrameRule(base=base, step=step, latent_step=latent_step)
    below, above = rule.nearest(num_frames)
    assert rule.allows(below)
    assert rule.allows(above)
    if rule.allows(num_frames):
        assert below == above == num_frames
    elif step and num_frames > base:
        assert below < num_frames < above == below + step
        assert rule.num_latent_frames(above) == rule.num_latent_frames(below) + latent_step
