from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from diffusers import QwenImagePipeline

from epe.errors import BadRequest, BadSetting
from epe.models.loading import Loading
from epe.models.qwen_image.adapter import QwenImageAdapter, load
from tests.models.qwen_image.drawing import LONG, PROMPTS, SHORT, SIZES, make_request
from tests.models.trajectories import solo
from tests.oracle import latents_of, pixels_of


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
    assert torch.equal(state.tensors["latents"], latents_of(pipeline, request))
    pixels = adapters[0].decode(state).numpy()
    assert pixels.shape == (1, *size, 3)
    assert np.array_equal(pixels, pixels_of(pipeline, request))


@pytest.mark.parametrize("guidance_scale", [0.0, 1.0])
def test_up_to_a_scale_of_1_there_is_one_branch_and_the_pipelines_picture(
    guidance_scale: float, adapters: list[QwenImageAdapter], pipeline: QwenImagePipeline
) -> None:
    request = make_request(guidance_scale=guidance_scale)
    assert set(adapters[0].encode(request).tensors) == {"latents", "prompt_embeds"}
    expected = latents_of(pipeline, request)
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
    assert torch.equal(drawn, latents_of(pipeline, request))
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
    assert torch.equal(drawn, latents_of(pipeline, request))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"guidance_embeds": True}, "other takes the guidance scale as an input"),
        ({"zero_cond_t": True}, "other is made to edit pictures"),
    ],
    ids=lambda each: str(each)[:20],
)
def test_a_checkpoint_of_another_kind_is_refused(
    change: dict[str, bool], reason: str, tiny_qwen_image: Path, tmp_path: Path
) -> None:
    folder = copytree(tiny_qwen_image, tmp_path / "other")
    file = folder / "transformer" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(BadSetting, match=reason):
        load(folder, Loading(device=torch.device("cpu")))
