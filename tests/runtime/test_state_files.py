"""A state comes back from disk with its bits, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from epe.jobs.states import States
from epe.messages import StateHeader
from epe.runtime.state_files import StateFiles

TENSORS = {
    "latents": torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1)),
    "embeddings": torch.randn(2, 8, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16),
    # A view, as a rank may send one.
    "half": torch.arange(10.0)[::2],
}
HEADER = StateHeader(request_id="job-1", step=3, names=tuple(TENSORS), scalars={"sigma": 0.1 + 0.2})


def files_of(folder: Path, *, drawn_by: str = "this world") -> StateFiles:
    files = StateFiles(folder)
    files.drawn_by = drawn_by
    return files


def test_a_state_comes_back_with_its_bits(tmp_path: Path) -> None:
    files_of(tmp_path).write(HEADER, TENSORS)
    found = files_of(tmp_path).read("job-1")
    assert found.message.header == HEADER
    assert found.message.seq == 0
    for tensor, wanted in zip(found.tensors, TENSORS.values(), strict=True):
        assert tensor.dtype == wanted.dtype
        assert torch.equal(tensor, wanted)


def test_a_state_of_another_world_is_not_believed(tmp_path: Path) -> None:
    files_of(tmp_path).write(HEADER, TENSORS)
    assert files_of(tmp_path, drawn_by="another world").read("job-1") is None


@pytest.mark.parametrize("data", [b"", b"no state at all", None], ids=["empty", "other", "cut off"])
def test_a_damaged_state_is_not_believed(tmp_path: Path, data: bytes | None) -> None:
    files_of(tmp_path).write(HEADER, TENSORS)
    path = tmp_path / "job-1"
    path.write_bytes(path.read_bytes()[:-1] if data is None else data)
    assert files_of(tmp_path).read("job-1") is None


def test_there_may_be_none(tmp_path: Path) -> None:
    assert files_of(tmp_path).read("job-1") is None
    files_of(tmp_path).remove("job-1")


def test_all_others_are_removed(tmp_path: Path) -> None:
    files_of(tmp_path).write(HEADER, TENSORS)
    (tmp_path / "job-2.new").write_bytes(b"half")
    asyncio.run(States(files_of(tmp_path)).open(["job-1"]))
    assert [path.name for path in tmp_path.iterdir()] == ["job-1"]
