"""Tiny checkpoints of every family are reproducible, small, and written without a trace."""

from __future__ import annotations

from pathlib import Path

import torch

from epe.models.catalog import make_tiny


def _files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(
    checkpoint: Path, tmp_path: Path
) -> None:
    make_tiny(checkpoint.name, tmp_path / "again")
    make_tiny(checkpoint.name, tmp_path / "other", seed=1)
    assert _files(tmp_path / "again") == _files(checkpoint)
    assert _files(tmp_path / "other") != _files(checkpoint)


def test_it_leaves_the_random_numbers_of_its_caller_alone(checkpoint: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    make_tiny(checkpoint.name, tmp_path / "tiny")
    assert torch.equal(torch.rand(2), expected)


def test_it_is_small(checkpoint: Path) -> None:
    assert sum(map(len, _files(checkpoint).values())) < 12e6
