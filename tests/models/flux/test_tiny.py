from __future__ import annotations

from pathlib import Path

import torch

from epe.models.catalog import make_tiny
from tests.models.flux.drawing import Subject


def _files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(
    subject: Subject, tmp_path: Path
) -> None:
    make_tiny(subject.name, tmp_path / "again")
    make_tiny(subject.name, tmp_path / "other", seed=1)
    assert _files(tmp_path / "again") == _files(subject.checkpoint)
    assert _files(tmp_path / "other") != _files(subject.checkpoint)


def test_it_leaves_the_random_numbers_of_its_caller_alone(subject: Subject, tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    make_tiny(subject.name, tmp_path / "tiny")
    assert torch.equal(torch.rand(2), expected)


def test_it_is_small_and_has_the_shape_of_the_real_one(subject: Subject) -> None:
    assert sum(map(len, _files(subject.checkpoint).values())) < 10e6
    transformer = subject.pipeline.transformer
    assert len(transformer.transformer_blocks) + len(transformer.single_transformer_blocks) >= 4
    assert subject.pipeline.vae_scale_factor == 8
    family = subject.adapter.family
    assert subject.pipeline.vae.config.latent_channels == family.latent_channels
    assert transformer.config.in_channels == 4 * family.latent_channels
