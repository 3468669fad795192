from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from diffusers import ZImagePipeline

from epe.errors import BadRequest, NonFinite
from epe.messages import Split, StateHeader
from epe.models.finite import check_finite
from epe.models.zimage.adapter import ZImageAdapter
from epe.transport.exchange import SoloExchange
from tests.models.zimage.drawing import LONG, PROMPTS, SHORT, SIZES, advance, make_request, reference, solo


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("prompts", PROMPTS)
def test_latents_and_pixels_are_those_of_the_pipeline(
    size: tuple[int, int], prompts: tuple[str, str], together: list[ZImageAdapter], pipeline: ZImagePipeline
) -> None:
    request = make_request(prompt=prompts[0], negative_prompt=prompts[1], height=size[0], width=size[1])
    state = solo(together[0], request)
    assert torch.equal(state.tensors["latents"], reference(pipeline, request, output_type="latent"))
    pixels = together[0].decode(state)
    assert pixels.shape == (1, *size, 3)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels[0], reference(pipeline, request, output_type="pil"))


def test_without_guidance_there_is_one_branch_and_the_pipelines_picture(
    together: list[ZImageAdapter], apart: list[ZImageAdapter], pipeline: ZImagePipeline
) -> None:
    request = make_request(guidance_scale=0.0)
    assert set(together[0].encode(request).tensors) == {"latents", "prompt_embeds"}
    expected = reference(pipeline, request, output_type="latent")
    assert torch.equal(solo(together[0], request).tensors["latents"], expected)
    assert torch.equal(solo(apart[0], request).tensors["latents"], expected)


def test_branches_apart_stay_within_rounding_of_the_pipeline(
    apart: list[ZImageAdapter], pipeline: ZImagePipeline
) -> None:
    request = make_request()
    drawn = solo(apart[0], request).tensors["latents"]
    torch.testing.assert_close(drawn, reference(pipeline, request, output_type="latent"), rtol=0, atol=1e-5)


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
    plain = together[0].decode(solo(together[0], make_request()))
    changed = together[0].decode(solo(together[0], make_request(**change)))
    assert not np.array_equal(plain, changed)
    assert plain.std() > 10


def test_requests_that_take_turns_do_not_see_each_other(together: list[ZImageAdapter]) -> None:
    adapter = together[0]
    requests = [
        make_request(id=str(n), num_steps=n, seed=n, height=256, width=16 * n + 64) for n in range(2, 6)
    ]
    alone = [solo(adapter, request).tensors["latents"] for request in requests]
    states = [adapter.encode(request) for request in requests]
    for _ in range(max(request.num_steps for request in requests)):
        states = [
            s if s.step == s.request.num_steps else advance(adapter, s, SoloExchange(), Split())
            for s in states
        ]
    assert all(torch.equal(s.tensors["latents"], latents) for s, latents in zip(states, alone, strict=True))


def test_a_step_leaves_the_state_that_it_was_given(together: list[ZImageAdapter]) -> None:
    state = together[0].encode(make_request())
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    after = together[0].step(state, SoloExchange(), Split())
    assert (state.step, after.step) == (0, 1)
    assert all(torch.equal(state.tensors[name], before[name]) for name in before)
    assert not torch.equal(after.tensors["latents"], before["latents"])


def test_states_can_be_used_outside_of_inference_mode(together: list[ZImageAdapter]) -> None:
    state = advance(together[0], together[0].encode(make_request()), SoloExchange(), Split())
    assert not any(tensor.is_inference() for tensor in state.tensors.values())


def test_a_state_is_exported_and_imported_bit_for_bit(together: list[ZImageAdapter]) -> None:
    request = make_request()
    state = advance(together[0], together[0].encode(request), SoloExchange(), Split())
    header, tensors = together[0].export_state(state)
    wire = msgspec.msgpack.encode(header)
    copies = tuple(
        torch.frombuffer(bytearray(t.numpy().tobytes()), dtype=t.dtype).view(t.shape) for t in tensors
    )
    arrived = together[1].import_state(request, msgspec.msgpack.decode(wire, type=StateHeader), copies)
    assert arrived.step == 1
    assert all(torch.equal(arrived.tensors[name], tensor) for name, tensor in state.tensors.items())
    assert tuple(arrived.tensors) == tuple(state.tensors)


def test_the_state_of_another_request_is_not_imported(together: list[ZImageAdapter]) -> None:
    header, tensors = together[0].export_state(together[0].encode(make_request(id="a")))
    with pytest.raises(ValueError, match="state of request a"):
        together[0].import_state(make_request(id="b"), header, tensors)


def test_no_step_is_taken_after_the_last(together: list[ZImageAdapter]) -> None:
    with pytest.raises(ValueError, match="has only 3 steps"):
        together[0].step(solo(together[0], make_request()), SoloExchange(), Split())


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
    assert torch.equal(drawn, reference(pipeline, request, output_type="latent"))
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


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_picture_that_is_not_finite_is_never_returned(bad: float, together: list[ZImageAdapter]) -> None:
    state = solo(together[0], make_request())
    latents = state.tensors["latents"].clone()
    latents[0, 3, 1, 1] = bad
    with pytest.raises(NonFinite, match="decoded picture") as caught:
        together[0].decode(replace(state, tensors={**state.tensors, "latents": latents}))
    assert caught.value.stage == "decode"
