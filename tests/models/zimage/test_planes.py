"""Tensor parallelism: planes that hold parts of the weights draw the pipeline's picture, at every width alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import ZImagePipeline

from epe.errors import BadSetting, StartFailed
from epe.messages import Split
from epe.models.catalog import load_adapter
from epe.models.loading import Loading
from epe.parallel import Plane
from epe.transport.exchange import SoloExchange
from tests.models.planes import SPLITS, TOLERANCE, Planes
from tests.models.zimage.drawing import SIZES, make_request
from tests.oracle import latents_of


@pytest.fixture(scope="module")
def apart(tiny_zimage: Path) -> Planes:
    return Planes(tiny_zimage, cfg_parallel_degree=2)


@pytest.fixture(scope="module")
def together(tiny_zimage: Path) -> Planes:
    return Planes(tiny_zimage, cfg_parallel_degree=1)


@pytest.mark.parametrize("size", SIZES[:3], ids=str)
@pytest.mark.parametrize("degree", [2, 3])
def test_planes_draw_the_pipelines_latents_with_equal_bits_at_every_width(
    size: tuple[int, int], degree: int, apart: Planes, pipeline: ZImagePipeline
) -> None:
    # Three heads: uneven on two planes, one each on three.
    request = make_request(height=size[0], width=size[1])
    drawn = [latents for split in SPLITS[degree] for latents in apart.draw(request, split)]
    expected = latents_of(pipeline, request)
    assert all(torch.equal(latents, drawn[0]) for latents in drawn)
    assert (drawn[0] - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("mode", ["agkv", "ulysses"])
def test_branches_as_one_batch_have_equal_bits_at_every_width_of_a_plane(
    mode: str, tiny_zimage: Path, pipeline: ZImagePipeline
) -> None:
    planes = Planes(tiny_zimage, cfg_parallel_degree=1, attention_mode=mode)
    request = make_request()
    drawn = [d for split in (Split(tp=2), Split(tp=2, cp=2)) for d in planes.draw(request, split)]
    assert all(torch.equal(latents, drawn[0]) for latents in drawn)
    assert (drawn[0] - latents_of(pipeline, request)).abs().max() < TOLERANCE


def test_a_request_that_moves_over_all_planes_at_every_boundary_keeps_its_bits(apart: Planes) -> None:
    request = make_request(num_steps=6)
    moved = apart.draw_with_moves(request, SPLITS[2] * 2)
    assert all(torch.equal(latents, apart.draw(request, Split(tp=2))[0]) for latents in moved)


def test_each_plane_holds_its_part_of_the_weights_and_the_first_alone_what_encodes_and_decodes(
    apart: Planes, pipeline: ZImagePipeline
) -> None:
    first, second = (apart.adapter(2, index, 0).pipeline for index in range(2))
    whole = sum(weight.numel() for weight in pipeline.transformer.layers.parameters())
    modulation = sum(
        weight.numel() for weight in pipeline.transformer.layers[0].adaLN_modulation.parameters()
    )
    parts = [sum(w.numel() for w in each.transformer.layers.parameters()) for each in (first, second)]
    # Two heads and one; norms and modulation are on both.
    assert whole < sum(parts) < whole + 5 * modulation
    assert parts[0] > parts[1]
    assert (second.text_encoder, second.vae) == (None, None)
    assert (first.text_encoder, first.vae) != (None, None)


@pytest.mark.parametrize("split", [Split(), Split(cp=2), Split(tp=3)], ids=str)
def test_a_model_in_planes_refuses_a_lane_that_does_not_span_them(split: Split, apart: Planes) -> None:
    adapter = apart.adapter(2, 0, 0)
    with pytest.raises(ValueError, match="with a model in 2 planes"):
        adapter.step(adapter.encode(make_request()), SoloExchange(), split)


def test_more_planes_than_heads_are_refused_with_what_is_possible(tiny_zimage: Path) -> None:
    with pytest.raises(StartFailed, match=r"has 3 heads, which 4 planes cannot share; .* may be 1 to 3"):
        load_adapter("zimage", tiny_zimage, Loading(device=torch.device("cpu"), plane=Plane(0, 4)))


def test_a_family_without_the_axis_refuses_planes(tiny_zimage: Path) -> None:
    with pytest.raises(
        BadSetting, match="flux1 has no such axis; families that have it are zimage, wan"
    ) as caught:
        load_adapter("flux1", tiny_zimage, Loading(device=torch.device("cpu"), plane=Plane(0, 2)))
    assert caught.value.path == "parallelism.model.tensor_parallel_degree"
