"""The page of `epe bench` is that of its kept rows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.bench_page import Kept, main, page

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "benchmarks/kept/bench-h200.json"


def test_the_page_shows_its_kept_rows(tmp_path: Path) -> None:
    main([str(KEPT), "--output", str(tmp_path / "bench-h200.md")])
    assert (tmp_path / "bench-h200.md").read_text() == (ROOT / "docs/results/bench-h200.md").read_text()
    assert (tmp_path / "bench-h200-0.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_not_measured_is_an_empty_cell() -> None:
    kept = msgspec.json.decode(KEPT.read_bytes(), type=Kept)
    run = kept.runs[0]
    alone = msgspec.structs.replace(run, rows=(msgspec.structs.replace(run.rows[0], others_step_s={}),))
    text = page(msgspec.structs.replace(kept, runs=(alone,)), picture="x")
    assert text.count("|  |  |  |  |") == 1
    assert "![Steps](x-0.png)" in text
