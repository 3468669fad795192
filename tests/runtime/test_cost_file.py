"""The file of a service's costs: whole or not at all, and believed only where it fits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from epe.messages import Stage
from epe.planning.cost_set import CostSet, Size, cost_set_of, restore
from epe.planning.costs import CostKey, CostTable
from epe.runtime.cost_file import CostFile, cache_folder

SIZE = Size(name="256x256", family="zimage", height=256, width=256)


def costs(fingerprint: str = "here") -> CostSet:
    table = CostTable({CostKey(stage=Stage.DENOISE, tokens=256): 0.5})
    table.moves.enter((0, 1), 1000, 0.01)
    table.memory.resident_bytes = 100
    table.memory.enter(CostKey(stage=Stage.DENOISE, tokens=256), 300)
    for seconds in (0.5, 0.5, 0.9) * 10:
        table.observe(CostKey(stage=Stage.DENOISE, tokens=256), seconds)
    return cost_set_of(table, name="zimage", sizes=(SIZE,), fingerprint=fingerprint)


@pytest.fixture
def file(tmp_path: Path) -> CostFile:
    return CostFile("auto", name="zimage", env={"XDG_CACHE_HOME": str(tmp_path)})


def test_what_was_kept_is_read_again(file: CostFile):
    assert file.read("here") is None
    file.write(costs())
    assert file.read("here") == costs()


def test_a_table_that_was_kept_and_restored_says_the_same(file: CostFile):
    file.write(costs())
    kept, again = file.read("here"), CostTable()
    assert kept is not None
    again.memory.resident_bytes = 100
    restore(again, kept)
    assert cost_set_of(again, name="zimage", sizes=(SIZE,), fingerprint="here") == costs()


def test_another_fingerprint_has_a_file_of_its_own(file: CostFile):
    file.write(costs("here"))
    assert file.read("there") is None
    file.write(costs("there"))
    assert file.read("here") == costs("here")


def test_a_named_file_of_another_fingerprint_is_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = CostFile(str(tmp_path / "costs.json"), name="zimage")
    file.write(costs("another model"))
    assert file.read("here") is None
    said = "".join(capsys.readouterr())
    assert "costs.outdated" in said
    assert "measured again" in said


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b'{"name": "x"}', bytes(range(256)), b"{" * 100_000]
)
def test_a_damaged_file_is_measured_again_with_a_sentence(
    file: CostFile, content: bytes, capsys: pytest.CaptureFixture[str]
):
    file.write(costs())
    file.path("here").write_bytes(content)
    assert file.read("here") is None
    said = "".join(capsys.readouterr())
    assert "costs.unreadable" in said
    assert "measured again" in said
    assert str(file.path("here")) in said, "it named the setting, auto, and not the file"
    file.write(costs())
    assert file.read("here") == costs()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"tasks": [{"stage": "denoise", "tokens": 256, "seconds": 1e308}]}, "$.tasks[0].seconds"),
        ({"tasks": [{"stage": "denoise", "tokens": 256, "seconds": 1e-308}]}, "$.tasks[0].seconds"),
        ({"tasks": [{"stage": "denoise", "tokens": 10**18, "seconds": 1}]}, "$.tasks[0].tokens"),
        (
            {"moves": [{"source": 0, "rank": 1, "state_bytes": 10**18, "seconds": 1}]},
            "$.moves[0].state_bytes",
        ),
        ({"migration": {"bytes_per_s": 1e-300}}, "$.migration.bytes_per_s"),
        ({"finish_s": 1e300}, "$.finish_s"),
    ],
)
def test_numbers_that_no_plan_can_be_made_with_are_measured_again(
    file: CostFile, change: dict[str, object], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One such number ended the planner of a service at its first request."""
    file.write(costs())
    path = file.path("here")
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    assert file.read("here") is None
    assert where in "".join(capsys.readouterr())


def test_every_cut_of_a_file_is_measured_again(file: CostFile):
    file.write(costs())
    whole = file.path("here").read_bytes()
    for length in range(0, len(whole) - 2, 7):
        file.path("here").write_bytes(whole[:length])
        assert file.read("here") is None


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(
    file: CostFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file.write(costs())
    before = file.path("here").read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    file.write(costs())
    assert "costs.not_kept" in "".join(capsys.readouterr())
    folder = file.path("here").parent
    assert [path.read_bytes() for path in folder.iterdir()] == [before]


def test_the_cache_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder({"XDG_CACHE_HOME": "/somewhere"}) == Path("/somewhere/epe")
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache/epe"
    assert cache_folder({}) == tmp_path / ".cache/epe"
