"""The page of exchanges over shared memory is what its kept runs say."""

from __future__ import annotations

from benchmarks.fast_lane_page import page
from benchmarks.multi_gpu_page import read
from tests.world import ROOT


def test_the_page_is_what_its_kept_runs_say() -> None:
    lines = read(ROOT / f"benchmarks/kept/fast-lane-{run}.jsonl" for run in "ab")
    assert (ROOT / "docs/results/fast-lane.md").read_text() == page(lines)
