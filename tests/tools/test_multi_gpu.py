"""The programs that measure lanes on several GPUs, on small models and CPU ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.h200_families import setting_of
from benchmarks.lane_decode import cases
from benchmarks.lane_steps import ways
from benchmarks.multi_gpu import Run, merged, perform
from benchmarks.step_entrants import StepCase
from tests.world import ADAPTERS, World

SETTING = setting_of("cpu", tiny=True)
CASE = StepCase("zimage", 256, 256, text_rows=32, timed_steps=1)


@pytest.fixture(scope="module")
def pair() -> Iterator[World]:
    """Two ranks: twice as many would take four times as long here."""
    world = World(2, preload=ADAPTERS)
    yield world
    world.close()


@pytest.mark.world
def test_every_way_to_take_a_step_gives_the_bits_of_one_rank_and_is_timed_in_turn(pair: World) -> None:
    run = Run("lane_steps:steps", (SETTING, CASE, time.time() + 90.0), {"family": "zimage"})
    *lines, took = perform(pair, run, limit_s=100.0)
    assert took["took_s"] > 0
    assert [(line["width"], line["method"], line["captured"]) for line in lines] == [
        (way.width, way.method, way.captured) for way in ways(2, has_branches=False)
    ]
    for line in lines:
        assert line["equal_bits"], line
        assert line["refused"] == 0, line
        assert len(line["step_ms"]) == len(line["host_ms"]) == 3, line


@pytest.mark.world
def test_compiled_blocks_on_a_lane_have_the_bits_of_one_rank(pair: World) -> None:
    line, _ = perform(pair, Run("compiled_lane:bits", (SETTING, CASE), {}), limit_s=100.0)
    assert line == {"width": 2, "own_gpus": 0.0, "replayed": 0, "refused": 0}


@pytest.mark.world
def test_a_decode_over_all_ranks_has_the_bits_of_one_in_bands(pair: World) -> None:
    picture = replace(cases(SETTING)[0], rows=16, columns=8)
    run = Run("lane_decode:decodes", (SETTING, picture), {})
    lines = {line["way"]: line for line in perform(pair, run, limit_s=100.0) if "way" in line}
    assert set(lines) == {"whole", "bands 1", "captured 1", "bands 2", "captured 2"}
    assert all(lines[way]["equal_bits"] for way in ("captured 1", "bands 2", "captured 2"))
    assert lines["bands 2"]["received_kib"]["rows"] > 0


@pytest.mark.world
def test_the_program_of_shared_memory_compares_bits_and_steps(pair: World) -> None:
    of_bits = Run("fast_lane_ranks:bits", (SETTING, ("gloo",)), {})
    bits, _ = perform(pair, of_bits, limit_s=100.0)
    assert bits["equal_bits"]
    assert bits["replayed"] == 24
    of_steps = Run("fast_lane_times:steps", (SETTING, ("gloo",), CASE, time.time() + 90.0), {})
    *lines, _ = perform(pair, of_steps, limit_s=100.0)
    assert [(line["transport"], line["captured"]) for line in lines] == [
        ("alone", True),
        ("gloo", False),
        ("gloo", True),
    ]
    assert all(line["equal_bits"] and len(line["step_ms"]) == 5 for line in lines), lines


def test_of_all_ranks_the_worst_counts_and_what_one_alone_knows_is_kept() -> None:
    ours = {"ms": [1.0, 5.0], "equal_bits": True, "way": "bands", "export_ms": [2.0]}
    theirs = {"ms": [3.0, 4.0], "equal_bits": False, "way": "bands", "move_ms": [7.0]}
    assert merged((ours, theirs)) == {
        "ms": [3.0, 5.0],
        "equal_bits": False,
        "way": "bands",
        "export_ms": [2.0],
        "move_ms": [7.0],
    }
