"""Tensor parallelism: planes that hold parts of the weights draw the pipeline's video, at every width alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline

from epe.messages import Split
from epe.models.catalog import load_adapter
from epe.models.loading import Loading
from epe.parallel import Plane
from tests.models.planes import SPLITS, TOLERANCE, Planes
from tests.models.wan.drawing import SIZES, make_request, of_size
from tests.oracle import latents_of


@pytest.fixture(scope="module")
def planes(tiny_wan: Path) -> Planes:
    return Planes(tiny_wan)


@pytest.mark.parametrize("size", SIZES[:3], ids=str)
@pytest.mark.parametrize("degree", [2, 3])
def test_planes_draw_the_pipelines_latents_with_equal_bits_at_every_width(
    size: tuple[int, int, int], degree: int, planes: Planes, pipeline: WanPipeline
) -> None:
    request = of_size(size, num_steps=3)
    drawn = [latents for split in SPLITS[degree] for latents in planes.draw(request, split)]
    expected = latents_of(pipeline, request)
    assert all(torch.equal(latents, drawn[0]) for latents in drawn)
    assert (drawn[0] - expected).abs().max() < TOLERANCE


def test_sharing_heads_within_planes_has_the_bits_of_planes_alone(tiny_wan: Path, planes: Planes) -> None:
    # Two heads on the first plane, one on the second: a plane of two ranks shares them, or cannot.
    by_heads = Planes(tiny_wan, attention_mode="ulysses")
    request = make_request()
    expected = planes.draw(request, Split(tp=2))[0]
    assert all(torch.equal(drawn, expected) for drawn in by_heads.draw(request, Split(tp=2, cp=2)))


def test_a_video_that_moves_over_all_planes_at_every_boundary_keeps_its_bits(planes: Planes) -> None:
    request = make_request(num_steps=6)
    moved = planes.draw_with_moves(request, SPLITS[2] * 2)
    assert all(torch.equal(latents, planes.draw(request, Split(tp=2))[0]) for latents in moved)


def test_in_bfloat16_a_plane_keeps_in_float32_what_the_whole_model_keeps(tiny_wan: Path) -> None:
    loading = Loading(device=torch.device("cpu"), dtype=torch.bfloat16)
    whole = load_adapter("wan", tiny_wan, loading).pipeline.transformer
    part = load_adapter("wan", tiny_wan, replace(loading, plane=Plane(1, 2))).pipeline.transformer
    types = {name: weight.dtype for name, weight in part.named_parameters()}
    assert types == {name: weight.dtype for name, weight in whole.named_parameters()}
    assert set(types.values()) == {torch.float32, torch.bfloat16}
    assert part.dtype == whole.dtype
    tables = [dict(each.named_buffers()) for each in (part, whole)]
    assert all(torch.equal(tables[0][name], table) for name, table in tables[1].items())
