from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler, WanPipeline

from epe.errors import BadRequest, BadSetting, NonFinite
from epe.messages import Split
from epe.models.finite import check_finite
from epe.models.loading import Loading
from epe.models.wan.adapter import WanAdapter, load
from epe.transport.exchange import SoloExchange
from tests.models.trajectories import advance, solo
from tests.models.wan.drawing import LONG, SHORT, SIZES, make_request, of_size
from tests.oracle import latents_of, pixels_of


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_latents_and_frames_are_those_of_the_pipeline(
    size: tuple[int, int, int], adapters: list[WanAdapter], pipeline: WanPipeline
) -> None:
    request = of_size(size)
    state = solo(adapters[0], request)
    assert torch.equal(state.tensors["latents"], latents_of(pipeline, request))
    pixels = adapters[0].decode(state).numpy()
    assert pixels.shape == (size[2], size[0], size[1], 3)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, pixels_of(pipeline, request))


@pytest.mark.parametrize("num_steps", [1, 2, 3, 8])
def test_the_solver_warms_up_and_winds_down_as_in_the_pipeline(
    num_steps: int, adapters: list[WanAdapter], pipeline: WanPipeline
) -> None:
    request = make_request(num_steps=num_steps)
    drawn = solo(adapters[0], request).tensors["latents"]
    assert torch.equal(drawn, latents_of(pipeline, request))


@pytest.mark.parametrize("flow_shift", [1.0, 8.0])
def test_a_flow_shift_is_that_of_the_pipelines_scheduler(
    flow_shift: float, adapters: list[WanAdapter], tiny_wan: Path
) -> None:
    request = make_request(flow_shift=flow_shift)
    shifted = WanPipeline.from_pretrained(tiny_wan, dtype=torch.float32, local_files_only=True)
    shifted.scheduler = UniPCMultistepScheduler.from_config(shifted.scheduler.config, flow_shift=flow_shift)
    expected = latents_of(shifted, request)
    drawn = solo(adapters[0], request).tensors["latents"]
    assert torch.equal(drawn, expected)
    assert not torch.equal(drawn, solo(adapters[0], make_request()).tensors["latents"])


@pytest.mark.parametrize("guidance_scale", [0.0, 1.0])
def test_up_to_a_scale_of_1_there_is_one_branch_and_the_pipelines_video(
    guidance_scale: float, adapters: list[WanAdapter], pipeline: WanPipeline
) -> None:
    request = make_request(guidance_scale=guidance_scale)
    assert set(adapters[0].encode(request).tensors) == {"latents", "prompt_embeds"}
    expected = latents_of(pipeline, request)
    assert torch.equal(solo(adapters[0], request).tensors["latents"], expected)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": LONG},
        {"negative_prompt": ""},
        {"guidance_scale": 2.0},
        {"seed": 12},
        {"num_steps": 5},
    ],
    ids=str,
)
def test_every_field_of_a_request_changes_the_video(
    change: dict[str, object], adapters: list[WanAdapter]
) -> None:
    plain = solo(adapters[0], make_request()).tensors["latents"]
    changed = solo(adapters[0], make_request(**change)).tensors["latents"]
    assert (plain - changed).abs().max() > 1e-3


@pytest.mark.parametrize("lost", ["last_sample", "model_output_0"])
def test_a_state_without_its_history_would_draw_something_else(lost: str, adapters: list[WanAdapter]) -> None:
    """The reason why the history travels."""
    request = make_request()
    state = advance(adapters[0], adapters[0].encode(request), SoloExchange(), Split(), num_steps=2)
    poor = replace(state, tensors={**state.tensors, lost: torch.zeros_like(state.tensors[lost])})
    ends = [advance(adapters[0], each, SoloExchange(), Split(), num_steps=2) for each in (state, poor)]
    assert (ends[0].tensors["latents"] - ends[1].tensors["latents"]).abs().max() > 1e-4


@pytest.mark.parametrize("param", ["prompt", "negative_prompt"])
def test_a_prompt_that_is_too_long_is_refused_with_both_counts(
    param: str, adapters: list[WanAdapter]
) -> None:
    request = make_request(**{param: "cat " * 600})
    with pytest.raises(BadRequest, match=rf"^{param} has 601 tokens; at most 512 are allowed") as caught:
        adapters[0].encode(request)
    assert caught.value.param == param


def test_a_prompt_of_just_the_allowed_length_is_drawn_whole(
    adapters: list[WanAdapter], pipeline: WanPipeline
) -> None:
    request = make_request(prompt="cat " * 11, negative_prompt=SHORT, max_sequence_length=12)
    drawn = solo(adapters[0], request).tensors["latents"]
    assert torch.equal(drawn, latents_of(pipeline, request))
    with pytest.raises(BadRequest, match="has 13 tokens; at most 12 are"):
        adapters[0].encode(make_request(prompt="cat " * 12, max_sequence_length=12))


def test_a_long_negative_prompt_does_not_matter_without_guidance(adapters: list[WanAdapter]) -> None:
    request = make_request(negative_prompt="cat " * 600, guidance_scale=0.0)
    assert adapters[0].encode(request).step == 0


def test_non_finite_history_is_reported_with_its_step(adapters: list[WanAdapter]) -> None:
    state = advance(adapters[0], adapters[0].encode(make_request()), SoloExchange(), Split())
    check_finite(state)
    broken = state.tensors["last_sample"].clone()
    broken[0, 3, 0, 1, 1] = float("nan")
    with pytest.raises(NonFinite, match="last_sample after denoise before step 1"):
        check_finite(replace(state, tensors={**state.tensors, "last_sample": broken}))


def test_in_bfloat16_the_vae_stays_in_float32(tiny_wan: Path) -> None:
    adapter = load(tiny_wan, Loading(device=torch.device("cpu"), dtype=torch.bfloat16))
    assert adapter.pipeline.transformer.dtype == torch.bfloat16
    assert adapter.pipeline.vae.dtype == torch.float32
    assert adapter.decode(solo(adapter, make_request(num_steps=1))).numpy().std() > 10


def test_a_checkpoint_of_wan_2_2_is_refused(tiny_wan: Path, tmp_path: Path) -> None:
    folder = copytree(tiny_wan, tmp_path / "newer")
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace('"boundary_ratio": null', '"boundary_ratio": 0.9'))
    with pytest.raises(BadSetting, match=r"newer holds Wan 2\.2"):
        load(folder, Loading(device=torch.device("cpu")))


def test_another_scheduler_than_the_one_that_is_proven_is_refused(tiny_wan: Path, tmp_path: Path) -> None:
    folder = copytree(tiny_wan, tmp_path / "euler")
    FlowMatchEulerDiscreteScheduler().save_pretrained(folder / "scheduler")
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace("UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"))
    with pytest.raises(
        BadSetting, match=r"FlowMatchEulerDiscreteScheduler; .* needs UniPCMultistepScheduler"
    ):
        load(folder, Loading(device=torch.device("cpu")))
