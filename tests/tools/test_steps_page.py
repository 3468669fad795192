"""The page of steps on H200 is what its kept run says."""

from __future__ import annotations

import json

from benchmarks.steps_page import page
from tests.world import ROOT

RUN = ROOT / "benchmarks/kept/h200-steps-a.jsonl"


def test_the_page_is_what_its_kept_run_says() -> None:
    lines = [json.loads(line) for line in RUN.read_text().splitlines() if line.startswith("{")]
    assert (ROOT / "docs/results/h200.md").read_text() == page(lines) + "\n"
