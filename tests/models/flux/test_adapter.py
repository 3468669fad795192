from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from epe.errors import BadRequest
from epe.models.catalog import load_adapter
from epe.models.contract import Adapter
from epe.models.loading import Loading
from tests.models.flux.drawing import CPU, SIZES, Subject
from tests.models.trajectories import solo


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_latents_and_pixels_are_those_of_the_pipeline(size: tuple[int, int], subject: Subject) -> None:
    request = subject.request(height=size[0], width=size[1])
    state = solo(subject.adapter, request)
    assert torch.equal(state.tensors["latents"], subject.latents(request))
    pixels = subject.adapter.decode(state).numpy()
    assert (pixels.shape, pixels.dtype) == ((1, *size, 3), np.uint8)
    assert np.array_equal(pixels, subject.picture(request))


@pytest.mark.parametrize("num_steps", [1, 4, 7])
@pytest.mark.parametrize("guidance_scale", [0.0, 1.0, 7.5])
def test_any_steps_and_guidance_are_those_of_the_pipeline(
    num_steps: int, guidance_scale: float, subject: Subject
) -> None:
    request = subject.request(
        height=64, width=96, num_steps=num_steps, guidance_scale=guidance_scale, max_sequence_length=48
    )
    assert torch.equal(solo(subject.adapter, request).tensors["latents"], subject.latents(request))


def test_a_second_branch_is_encoded_only_where_guidance_makes_one(subject: Subject) -> None:
    names = {
        scale: set(subject.adapter.encode(subject.request(guidance_scale=scale)).tensors)
        for scale in (1.0, 3.5)
    }
    own = {"latents", "prompt_embeds"} | ({"pooled_prompt_embeds"} if subject.name == "flux1" else set())
    assert names[1.0] == own
    assert names[3.5] == own | (set() if subject.name == "flux1" else {"negative_prompt_embeds"})


@pytest.mark.parametrize(
    "change", [{"prompt": "a dog"}, {"guidance_scale": 5.0}, {"seed": 12}, {"num_steps": 4}], ids=str
)
def test_every_field_of_a_request_changes_the_picture(change: dict[str, Any], subject: Subject) -> None:
    plain, changed = (
        subject.adapter.decode(solo(subject.adapter, subject.request(**fields))).numpy()
        for fields in ({}, change)
    )
    assert not np.array_equal(plain, changed)
    assert plain.std() > 5


def test_a_prompt_that_is_too_long_is_refused_with_both_counts(subject: Subject) -> None:
    with pytest.raises(BadRequest, match=r"^prompt has \d+ tokens.*; at most 150 are allowed$") as caught:
        subject.adapter.encode(subject.request(prompt="cat " * 200))
    assert caught.value.param == "prompt"


def test_a_prompt_of_just_the_allowed_length_is_drawn_whole(subject: Subject) -> None:
    with pytest.raises(BadRequest) as caught:
        subject.adapter.encode(subject.request(max_sequence_length=1))
    num_tokens = int(str(caught.value).split()[2])
    request = subject.request(max_sequence_length=num_tokens, height=64, width=64)
    assert torch.equal(solo(subject.adapter, request).tensors["latents"], subject.latents(request))
    with pytest.raises(BadRequest, match=f"at most {num_tokens - 1} are allowed"):
        subject.adapter.encode(subject.request(max_sequence_length=num_tokens - 1))


def test_guidance_that_a_checkpoint_does_not_take_is_refused(subject: Subject, tmp_path: Path) -> None:
    adapter = _without_guidance(subject, tmp_path / subject.name)
    with pytest.raises(BadRequest, match=r"guidance_scale 7\.5 has no effect: this checkpoint") as caught:
        adapter.encode(subject.request(guidance_scale=7.5))
    assert caught.value.param == "guidance_scale"
    for accepted in (0.0, adapter.family.defaults.guidance_scale):
        assert solo(adapter, subject.request(guidance_scale=accepted, num_steps=1)).step == 1


def _without_guidance(subject: Subject, directory: Path) -> Adapter:
    """The checkpoint of a distilled model: FLUX.1-schnell, FLUX.2-klein."""
    shutil.copytree(subject.checkpoint, directory)
    file, key, value = {
        "flux1": ("transformer/config.json", "guidance_embeds", False),
        "flux2-klein": ("model_index.json", "is_distilled", True),
    }[subject.name]
    config = json.loads((directory / file).read_text())
    (directory / file).write_text(json.dumps(config | {key: value}))
    return load_adapter(subject.name, directory, Loading(device=CPU))


def test_a_lane_is_not_split_by_guidance(subject: Subject) -> None:
    with pytest.raises(ValueError, match="cfg_parallel_degree is 2"):
        load_adapter(subject.name, subject.checkpoint, Loading(device=CPU, cfg_parallel_degree=2))
