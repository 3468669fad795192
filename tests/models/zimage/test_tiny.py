from __future__ import annotations

from pathlib import Path

import torch
from diffusers import ZImagePipeline

from epe.models.zimage.tiny import make_tiny


def _files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(
    tiny_zimage: Path, tmp_path: Path
) -> None:
    make_tiny(tmp_path / "again")
    make_tiny(tmp_path / "other", seed=1)
    assert _files(tmp_path / "again") == _files(tiny_zimage)
    assert _files(tmp_path / "other") != _files(tiny_zimage)


def test_it_leaves_the_random_numbers_of_its_caller_alone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    make_tiny(tmp_path / "tiny")
    assert torch.equal(torch.rand(2), expected)


def test_it_is_small_and_has_the_shape_of_the_real_one(tiny_zimage: Path, pipeline: ZImagePipeline) -> None:
    assert sum(map(len, _files(tiny_zimage).values())) < 8e6
    assert len(pipeline.transformer.layers) >= 4
    assert len(pipeline.transformer.noise_refiner) == 2
    assert pipeline.vae_scale_factor == 8
    assert pipeline.transformer.x_pad_token.abs().min() > 0
    assert pipeline.transformer.cap_pad_token.abs().min() > 0
