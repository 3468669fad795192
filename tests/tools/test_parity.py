"""The parity page: what it covers, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.parity import WIDTHS, rows
from benchmarks.parity_table import Cell, Found, Line, Row, render
from epe.config.load import build_stage
from epe.errors import BadSetting
from epe.families import FAMILIES, MAX_PLANES, MAX_WIDTH

AVAILABLE = [name for name, family in FAMILIES.items() if family.available]
AXES = {"cfg": "cfg_parallel_degree", "tp": "tensor_parallel_degree"}


def _is_accepted(name: str, settings: dict[str, object], folder: Path) -> bool:
    (folder / "model_index.json").write_text(json.dumps({"_class_name": FAMILIES[name].pipeline}))
    stage = {"name": "a", "factory": name, "gpu": [0, 1], "factory_args": {"model_path": str(folder)}}
    try:
        build_stage({**stage, "parallelism": settings}, env={})
    except BadSetting as refused:
        if "no such axis" not in str(refused):
            raise
        return False
    return True


@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize("axis", AXES)
def test_an_axis_that_is_not_in_the_table_is_refused_when_a_stage_is_loaded(
    name: str, axis: str, tmp_path: Path
) -> None:
    shown = {getattr(row, axis) for row in rows(FAMILIES[name])}
    accepted = {1, *([2] * _is_accepted(name, {"model": {AXES[axis]: 2}}, tmp_path))}
    assert accepted == shown


@pytest.mark.parametrize("name", AVAILABLE)
def test_every_method_type_and_size_is_in_the_table(name: str) -> None:
    shown = list(rows(FAMILIES[name]))
    assert len(set(shown)) == len(shown)
    assert {row.method for row in shown} == {"AGKV", "Ulysses", "hybrid"}
    assert {(row.dtype, row.size) for row in shown} == {
        (dtype, size) for dtype in ("float32", "bfloat16") for size in (0, 1)
    }
    assert tuple(range(1, MAX_WIDTH + 1)) == WIDTHS


def test_the_page_tells_equal_bits_from_differences_and_from_ranks_that_disagree() -> None:
    row = Row(dtype="float32", size=1, method="AGKV", cfg=1, tp=1)
    cells = {1: Cell(0.0, True), 2: Cell(2e-6, True), 3: Cell(0.0, False)}
    found = Found(
        family="toy",
        tokens=(32, 105),
        coarseness=0.25,
        lines=[Line(row, cells)],
        moves={"AGKV, TP 1": Cell(0.0, True)},
        batches={1: Cell(3e-6, True), 2: Cell(0.0, True)},
        crowd=Cell(0.0, False),
    )
    page = render([found], about="a machine")
    assert "| float32 | 105 | AGKV | 1 | 1 | 0 | 2.0e-06 | 0, ranks differ |" in page
    assert "1 of 3 cells are equal bits" in page
    assert "2.5e-01 from those in float32" in page
    assert "| toy | 0 |" in page
    assert "| toy | 3.0e-06 | 0 | 0, ranks differ |" in page


@pytest.mark.parametrize(("widths", "planes"), [([1, MAX_WIDTH + 1], 1), ([1], MAX_PLANES + 1)])
def test_a_width_or_number_of_planes_that_is_not_in_the_table_is_refused_when_a_stage_is_loaded(
    widths: list[int], planes: int, tmp_path: Path
) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": FAMILIES["zimage"].pipeline}))
    parallelism = {"scheduler": {"allowed_lane_widths": widths}, "model": {"tensor_parallel_degree": planes}}
    stage = {
        "name": "a",
        "factory": "zimage",
        "gpu": list(range(12)),
        "factory_args": {"model_path": str(tmp_path)},
    }
    with pytest.raises(BadSetting, match="whose pictures are proven"):
        build_stage({**stage, "parallelism": parallelism}, env={})
