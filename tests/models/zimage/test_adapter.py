from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import ZImagePipeline

from epe.errors import BadRequest, NonFinite
from epe.messages import Split
from epe.models.finite import check_finite
from epe.models.zimage.adapter import ZImageAdapter
from epe.transport.exchange import SoloExchange
from tests.models.trajectories import advance, solo
from tests.models.zimage.drawing import LONG, PROMPTS, SHORT, SIZES, make_request
from tests.oracle import latents_of, pixels_of


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("prompts", PROMPTS)
def test_latents_and_pixels_are_those_of_the_pipeline(
    size: tuple[int, int], prompts: tuple[str, str], together: list[ZImageAdapter], pipeline: ZImagePipeline
) -> None:
    request = make_request(prompt=prompts[0], negative_prompt=prompts[1], height=size[0], width=size[1])
    state = solo(together[0], request)
    assert torch.equal(state.tensors["latents"], latents_of(pipeline, request))
    pixels = together[0].decode(state).numpy()
    assert pixels.shape == (1, *size, 3)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, pixels_of(pipeline, request))


def test_without_guidance_there_is_one_branch_and_the_pipelines_picture(
    together: list[ZImageAdapter], apart: list[ZImageAdapter], pipeline: ZImagePipeline
) -> None:
    request = make_request(guidance_scale=0.0)
    assert set(together[0].encode(request).tensors) == {"latents", "prompt_embeds"}
    expected = latents_of(pipeline, request)
    assert torch.equal(solo(together[0], request).tensors["latents"], expected)
    assert torch.equal(solo(apart[0], request).tensors["latents"], expected)


def test_branches_apart_stay_within_rounding_of_the_pipeline(
    apart: list[ZImageAdapter], pipeline: ZImagePipeline
) -> None:
    request = make_request()
    drawn = solo(apart[0], request).tensors["latents"]
    torch.testing.assert_close(drawn, latents_of(pipeline, request), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": LONG},
        {"negative_prompt": ""},
        {"guidance_scale": 1.0},
        {"seed": 12},
        {"num_steps": 4},
    ],
)
def test_every_field_of_a_request_changes_the_picture(
    change: dict[str, object], together: list[ZImageAdapter]
) -> None:
    plain = together[0].decode(solo(together[0], make_request())).numpy()
    changed = together[0].decode(solo(together[0], make_request(**change))).numpy()
    assert not np.array_equal(plain, changed)
    assert plain.std() > 10


@pytest.mark.parametrize("param", ["prompt", "negative_prompt"])
def test_a_prompt_that_is_too_long_is_refused_with_both_counts(
    param: str, together: list[ZImageAdapter]
) -> None:
    request = make_request(**{param: "cat " * 600})
    with pytest.raises(
        BadRequest, match=rf"^{param} has \d+ tokens with its chat template; at most 512 are"
    ) as caught:
        together[0].encode(request)
    assert caught.value.param == param


def test_a_prompt_of_just_the_allowed_length_is_drawn_whole(
    together: list[ZImageAdapter], pipeline: ZImagePipeline
) -> None:
    num_tokens = len(together[0].encode(make_request(prompt=LONG)).tensors["prompt_embeds"])
    request = make_request(prompt=LONG, negative_prompt=SHORT, max_sequence_length=num_tokens)
    drawn = solo(together[0], request).tensors["latents"]
    assert torch.equal(drawn, latents_of(pipeline, request))
    with pytest.raises(BadRequest, match=f"at most {num_tokens - 1} are"):
        together[0].encode(make_request(prompt=LONG, max_sequence_length=num_tokens - 1))


def test_the_rotary_table_bounds_a_prompt_that_the_request_would_allow(together: list[ZImageAdapter]) -> None:
    with pytest.raises(BadRequest, match="at most 992 are"):
        together[0].encode(make_request(prompt="cat " * 1500, max_sequence_length=4000))


def test_a_long_negative_prompt_does_not_matter_without_guidance(together: list[ZImageAdapter]) -> None:
    assert together[0].encode(make_request(negative_prompt="cat " * 600, guidance_scale=0.0)).step == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_latents_are_reported_with_their_step(bad: float, together: list[ZImageAdapter]) -> None:
    state = advance(together[0], together[0].encode(make_request()), SoloExchange(), Split())
    check_finite(state)
    latents = state.tensors["latents"].clone()
    latents[0, 3, 1, 1] = bad
    with pytest.raises(NonFinite, match="latents after denoise before step 1") as caught:
        check_finite(replace(state, tensors={**state.tensors, "latents": latents}))
    assert (caught.value.stage, caught.value.step) == ("denoise", 1)
