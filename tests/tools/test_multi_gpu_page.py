"""The page of lanes over several GPUs is what its kept runs say."""

from __future__ import annotations

import pytest

from benchmarks.multi_gpu_page import page, read
from benchmarks.nearness import is_near
from tests.world import ROOT

RUNS = (
    "parity",
    "parity-b",
    "parity-c",
    "places",
    "lanes-a",
    "lanes-b",
    "lanes-c",
    "lanes-d",
    "elastic",
    "elastic-b",
    "foretold",
    "as-if",
    "service",
    "fast-service",
)
# Operations of a step were counted there.
STEPS = ("c", "d", "e")


def test_the_page_is_what_its_kept_runs_say() -> None:
    names = (*(f"multi-gpu-{name}" for name in RUNS), *(f"h200-steps-{name}" for name in STEPS))
    lines = read(ROOT / f"benchmarks/kept/{name}.jsonl" for name in names)
    assert (ROOT / "docs/results/multi-gpu.md").read_text() == page(lines)


@pytest.mark.parametrize(
    ("figure", "foretold", "seen", "near"),
    [
        ("in_time", 0.87, 0.9, True),
        ("in_time", 0.86, 0.9, False),
        ("p50_s", 2.1, 2.0, True),
        ("p50_s", 1.89, 2.0, False),
        ("p95_s", 2.19, 2.0, True),
        ("p95_s", 2.21, 2.0, False),
        # Some were never answered, in the service or in the simulator.
        ("p95_s", 2.0, None, False),
        ("p95_s", None, 2.0, False),
    ],
)
def test_a_figure_is_near_within_its_limit(
    figure: str, foretold: float | None, seen: float | None, near: bool
) -> None:
    assert is_near(figure, foretold, seen) is near
