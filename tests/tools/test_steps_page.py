"""The page of steps on H200 is what its kept run says."""

from __future__ import annotations

import json

from benchmarks.steps_page import page
from tests.world import ROOT

RUNS = [ROOT / f"benchmarks/kept/h200-steps-{name}.jsonl" for name in "abcd"]


def test_the_page_is_what_its_kept_runs_say() -> None:
    texts = (line for run in RUNS for line in run.read_text().splitlines())
    lines = [json.loads(text) for text in texts if text.startswith("{")]
    assert (ROOT / "docs/results/h200.md").read_text() == page(lines) + "\n"
