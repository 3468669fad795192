from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import msgspec
import numpy as np
import pytest
import torch
from diffusers import QwenImagePipeline

from epe.errors import BadRequest, BadSetting, NonFinite
from epe.messages import Split, StateHeader
from epe.models.qwen_image.adapter import QwenImageAdapter, load
from epe.transport.exchange import SoloExchange
from tests.models.qwen_image.drawing import LONG, PROMPTS, SHORT, SIZES, make_request, reference
from tests.models.trajectories import advance, same, solo, taking_turns


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("prompts", PROMPTS, ids=lambda p: str(tuple(map(len, p))))
def test_latents_and_pixels_are_those_of_the_pipeline(
    size: tuple[int, int],
    prompts: tuple[str, str],
    adapters: list[QwenImageAdapter],
    pipeline: QwenImagePipeline,
) -> None:
    request = make_request(
        prompt=prompts[0], negative_prompt=prompts[1], height=size[0], width=size[1], num_steps=2
    )
    state = solo(adapters[0], request)
    assert torch.equal(state.tensors["latents"], reference(pipeline, request, output_type="latent"))
    pixels = adapters[0].decode(state)
    assert pixels.shape == (1, *size, 3)
    assert np.array_equal(pixels[0], reference(pipeline, request, output_type="pil"))


@pytest.mark.parametrize("guidance_scale", [0.0, 1.0])
def test_up_to_a_scale_of_1_there_is_one_branch_and_the_pipelines_picture(
    guidance_scale: float, adapters: list[QwenImageAdapter], pipeline: QwenImagePipeline
) -> None:
    request = make_request(guidance_scale=guidance_scale)
    assert set(adapters[0].encode(request).tensors) == {"latents", "prompt_embeds"}
    expected = reference(pipeline, request, output_type="latent")
    assert torch.equal(solo(adapters[0], request).tensors["latents"], expected)


def test_the_template_is_left_out_of_the_prompt_and_nothing_else(adapters: list[QwenImageAdapter]) -> None:
    tokenizer = adapters[0].pipeline.tokenizer
    num_rows = adapters[0].encode(make_request(prompt=LONG)).tensors["prompt_embeds"].shape[1]
    assert num_rows == len(tokenizer(LONG).input_ids) + len(
        tokenizer("<|im_end|>\n<|im_start|>assistant\n").input_ids
    )


@pytest.mark.parametrize(
    "change",
    [{"prompt": LONG}, {"negative_prompt": ""}, {"guidance_scale": 2.0}, {"seed": 12}, {"num_steps": 4}],
    ids=str,
)
def test_every_field_of_a_request_changes_the_picture(
    change: dict[str, object], adapters: list[QwenImageAdapter]
) -> None:
    plain = solo(adapters[0], make_request()).tensors["latents"]
    changed = solo(adapters[0], make_request(**change)).tensors["latents"]
    assert (plain - changed).abs().max() > 1e-3


def test_eight_requests_that_take_turns_do_not_see_each_other(adapters: list[QwenImageAdapter]) -> None:
    requests = [
        make_request(id=str(n), num_steps=2 + n, seed=n, width=64 + 16 * n, prompt=SHORT if n % 2 else LONG)
        for n in range(8)
    ]
    together = taking_turns(adapters[0], requests)
    assert all(same(state, solo(adapters[0], state.request)) for state in together)


@pytest.mark.parametrize("boundary", range(4))
def test_a_state_goes_over_the_wire_and_on_elsewhere_at_every_boundary(
    boundary: int, adapters: list[QwenImageAdapter]
) -> None:
    request = make_request()
    here, there = adapters[:2]
    state = advance(here, here.encode(request), SoloExchange(), Split(), num_steps=boundary)
    header, tensors = here.export_state(state)
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(header), type=StateHeader)
    # The source goes on with another request meanwhile.
    solo(here, make_request(id="other", seed=1, num_steps=2))
    moved = there.import_state(request, arrived, tensors)
    assert same(moved, state)
    left = request.num_steps - boundary
    assert same(advance(there, moved, SoloExchange(), Split(), num_steps=left), solo(here, request))


def test_a_step_beyond_the_last_is_refused(adapters: list[QwenImageAdapter]) -> None:
    with pytest.raises(ValueError, match="has only 3 steps"):
        adapters[0].step(solo(adapters[0], make_request()), SoloExchange(), Split())


@pytest.mark.parametrize("param", ["prompt", "negative_prompt"])
def test_a_prompt_that_is_too_long_is_refused_with_both_counts(
    param: str, adapters: list[QwenImageAdapter]
) -> None:
    request = make_request(**{param: "cat " * 600})
    with pytest.raises(BadRequest, match=rf"^{param} has \d+ tokens .*; at most 512 are allowed") as caught:
        adapters[0].encode(request)
    assert caught.value.param == param


def test_a_prompt_of_just_the_allowed_length_is_drawn_whole(
    adapters: list[QwenImageAdapter], pipeline: QwenImagePipeline
) -> None:
    num_tokens = adapters[0].encode(make_request(prompt=LONG)).tensors["prompt_embeds"].shape[1]
    request = make_request(prompt=LONG, negative_prompt=SHORT, max_sequence_length=num_tokens)
    drawn = solo(adapters[0], request).tensors["latents"]
    assert torch.equal(drawn, reference(pipeline, request, output_type="latent"))
    with pytest.raises(BadRequest, match=f"at most {num_tokens - 1} are"):
        adapters[0].encode(make_request(prompt=LONG, max_sequence_length=num_tokens - 1))


def test_the_longest_prompt_that_may_be_asked_for_is_not_cut(
    adapters: list[QwenImageAdapter], pipeline: QwenImagePipeline
) -> None:
    request = make_request(
        prompt="cat " * 1000, negative_prompt=" ", max_sequence_length=1024, num_steps=2, height=64, width=64
    )
    assert adapters[0].encode(request).tensors["prompt_embeds"].shape[1] > 1000
    drawn = solo(adapters[0], request).tensors["latents"]
    assert torch.equal(drawn, reference(pipeline, request, output_type="latent"))


def test_a_picture_that_is_not_finite_is_never_returned(adapters: list[QwenImageAdapter]) -> None:
    state = solo(adapters[0], make_request())
    latents = state.tensors["latents"].clone()
    latents[0, 3, 1] = float("nan")
    with pytest.raises(NonFinite, match="decoded picture"):
        adapters[0].decode(replace(state, tensors={**state.tensors, "latents": latents}))


def test_a_checkpoint_that_takes_the_scale_as_an_input_is_refused(
    tiny_qwen_image: Path, tmp_path: Path
) -> None:
    folder = copytree(tiny_qwen_image, tmp_path / "distilled")
    file = folder / "transformer" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"guidance_embeds": True}))
    with pytest.raises(BadSetting, match="distilled takes the guidance scale as an input"):
        load(folder, device=torch.device("cpu"))
