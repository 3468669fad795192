"""The same bits at every width and across every move, on lanes of threads."""

from __future__ import annotations

import pytest
import torch
from diffusers import QwenImagePipeline

from epe.messages import Split
from epe.models.qwen_image.adapter import QwenImageAdapter
from tests.models.qwen_image.drawing import LARGE, LONGEST, PROMPTS, SHORT, SIZES, make_request
from tests.models.trajectories import drawn_by_lane, drawn_with_moves, same, solo
from tests.oracle import latents_of

SPLITS = [Split(cp=2), Split(cp=3), Split(cp=4), Split(cfg=2, cp=1), Split(cfg=2, cp=2)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("prompts", PROMPTS, ids=lambda p: str(tuple(map(len, p))))
@pytest.mark.parametrize("mode", ["agkv", "ulysses"])
def test_every_lane_gives_the_pipelines_bits(
    size: tuple[int, int],
    prompts: tuple[str, str],
    mode: str,
    adapters: list[QwenImageAdapter],
    ulysses: list[QwenImageAdapter],
    pipeline: QwenImagePipeline,
) -> None:
    request = make_request(
        prompt=prompts[0], negative_prompt=prompts[1], height=size[0], width=size[1], num_steps=2
    )
    expected = latents_of(pipeline, request)
    for split in SPLITS:
        drawn = drawn_by_lane(adapters if mode == "agkv" else ulysses, request, split)
        assert all(torch.equal(latents, expected) for latents in drawn), split


@pytest.mark.parametrize("split", [Split(cp=3), Split(cfg=2, cp=2)], ids=str)
def test_a_large_picture_with_a_long_prompt_has_the_pipelines_bits(
    split: Split, adapters: list[QwenImageAdapter], pipeline: QwenImagePipeline
) -> None:
    request = make_request(prompt=LONGEST, height=LARGE[0], width=LARGE[1], num_steps=2)
    expected = latents_of(pipeline, request)
    assert all(torch.equal(drawn, expected) for drawn in drawn_by_lane(adapters, request, split))


@pytest.mark.parametrize("width", [2, 3, 4])
def test_without_guidance_every_width_gives_the_pipelines_bits(
    width: int, adapters: list[QwenImageAdapter], pipeline: QwenImagePipeline
) -> None:
    request = make_request(guidance_scale=0.0, prompt=LONGEST)
    expected = latents_of(pipeline, request)
    assert all(torch.equal(d, expected) for d in drawn_by_lane(adapters, request, Split(cp=width)))


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_request_that_moves_at_every_step_boundary_keeps_its_bits(
    first: int, adapters: list[QwenImageAdapter]
) -> None:
    splits = [Split(), *SPLITS]
    request = make_request(num_steps=6, prompt=LONGEST, negative_prompt=SHORT)
    turns = [splits[(first + step) % len(splits)] for step in range(request.num_steps)]
    moved = drawn_with_moves(adapters, adapters[0].encode(request), turns)
    assert same(moved, solo(adapters[0], request))
