"""The page of lanes over several GPUs is what its kept runs say."""

from __future__ import annotations

from benchmarks.multi_gpu_page import page, read
from tests.world import ROOT

RUNS = ("parity", "parity-b", "lanes-a", "lanes-b", "lanes-c", "elastic", "foretold", "service")
# Operations of a step were counted there.
STEPS = ("c", "d", "e")


def test_the_page_is_what_its_kept_runs_say() -> None:
    names = (*(f"multi-gpu-{name}" for name in RUNS), *(f"h200-steps-{name}" for name in STEPS))
    lines = read(ROOT / f"benchmarks/kept/{name}.jsonl" for name in names)
    assert (ROOT / "docs/results/multi-gpu.md").read_text() == page(lines)
