"""The page of lanes over several GPUs is what its kept runs say."""

from __future__ import annotations

from benchmarks.multi_gpu_page import page, read
from tests.world import ROOT

RUNS = ("parity", "lanes-a", "lanes-b", "service")


def test_the_page_is_what_its_kept_runs_say() -> None:
    lines = read(ROOT / f"benchmarks/kept/multi-gpu-{name}.jsonl" for name in RUNS)
    assert (ROOT / "docs/results/multi-gpu.md").read_text() == page(lines)
