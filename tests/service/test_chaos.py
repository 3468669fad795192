"""The short form of `benchmarks/chaos.py`: kills, stops, faults and leaving clients, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.chaos import run_chaos
from benchmarks.chaos_report import report

pytestmark = pytest.mark.world

NUM_REQUESTS, NUM_DEATHS, OVER_S = 36, 5, 30.0


async def test_whatever_dies_or_leaves_or_fails_every_request_has_one_end_and_every_picture_its_bits(
    tiny_zimage: Path, tmp_path: Path
) -> None:
    findings = await run_chaos(
        tmp_path, tiny_zimage, num_requests=NUM_REQUESTS, num_deaths=NUM_DEATHS, over_s=OVER_S, seed=11
    )
    assert findings.problems == [], report(findings, command="in a test")
    assert len(findings.ends) == NUM_REQUESTS
    assert len(findings.deaths) == NUM_DEATHS
    assert findings.num_above_a_lease == 0, "a death costs the steps of one lease"
    assert 2 * findings.num_at_work >= NUM_DEATHS, "most ranks shall die at work"
    assert findings.outcomes["finished"] >= NUM_REQUESTS / 4
    assert Counter(event["kind"] for event in findings.of("fault.struck")).total() > 0
