"""The program that compares schedulers: which of its runs the code that is here would make anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("scipy")

from epe.simulator.metrics import Metrics
from tests.simulator.conftest import CELL


def test_a_version_whose_runs_give_the_same_anew_counts_as_this_one(
    program: Callable[[str], ModuleType],
) -> None:
    runs, entrants = program("scheduling_runs"), program("scheduling_entrants")
    versions = program("scheduling_versions")

    def lines(num: int, simulator: str, *, late: int = -1, plan_ms: float = 0.0) -> dict[bytes, object]:
        """Runs of a baseline, of which one found nothing in time."""
        nothing = {**dict.fromkeys(Metrics.__struct_fields__, 0.0), "plan_ms_p50": plan_ms}
        found = {}
        for seed in range(num):
            entrant = entrants.Entrant(name="rssp", policy="rssp")
            job = runs.Job(cell=CELL, seed=seed, num_requests=9, entrant=entrant)
            metrics = Metrics(**{**nothing, "slo_attainment": float(seed != late)})
            found[job.key] = runs.Line(job=job, code="", simulator=simulator, took_s=1.0, metrics=metrics)
        return found

    def is_older(again: dict[bytes, object]) -> set[bool]:
        kept = lines(20, "before")
        seen = versions.Versions(kept, again)
        return {seen.is_older(line) for line in kept.values()}

    here = runs.simulator_code()
    assert is_older({}) == {True}
    assert is_older(lines(versions.ENOUGH, here, plan_ms=1.0)) == {False}
    assert is_older(lines(versions.ENOUGH - 1, here)) == {True}
    assert is_older(lines(versions.ENOUGH, here, late=3)) == {True}
    assert is_older(lines(versions.ENOUGH, "before")) == {True}


def test_only_code_that_a_run_needs_is_in_its_fingerprint(
    program: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    fingerprint = program("scheduling_code").fingerprint

    def of(policy: str, order: str) -> str:
        (tmp_path / "policy.py").write_text(policy)
        (tmp_path / "order.py").write_text(order)
        found: str = fingerprint(tmp_path, "policy", prefix="own.")
        return found

    policy = "from own.order import first\n\nPULSE = 1  # step\n\ndef plan(view):\n    return first(view)[:PULSE]\n"
    order = "KEY = 0\n\ndef first(view):\n    return sorted(view, key=lambda each: each[KEY])\n\ndef last(): ...\n"
    same = of(policy, order)
    assert of(policy.replace("  # step", "  # a step"), order) == same
    assert of(policy, order.replace("view):\n", 'view):\n    """Who is first."""\n')) == same
    assert of(policy, order.replace("last(): ...", "least(): return 1")) == same
    assert of(policy, order.replace("KEY = 0", "KEY = 1")) != same
    assert of(policy.replace("PULSE = 1", "PULSE = 2"), order) != same
    assert of(policy, order.replace("sorted(", "list(")) != same
