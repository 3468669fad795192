"""Moves of a state: measured by bytes and pair of ranks."""

from __future__ import annotations

import pytest

from epe.planning.costs import CostTable, Migration
from epe.planning.moves import Moves


def test_before_anything_was_measured_the_assumption_holds_for_every_pair():
    costs = CostTable(migration=Migration(latency_s=0.01, bytes_per_s=1e6))
    assert costs.migration_s(1_000_000) == costs.migration_s(1_000_000, (0, 3)) == pytest.approx(1.01)


def test_a_pair_that_is_far_costs_more_and_others_what_is_usual():
    moves = Moves()
    for pair, seconds in (((0, 1), 0.001), ((1, 0), 0.001), ((0, 2), 0.1)):
        for each in (seconds, 2 * seconds, seconds):
            moves.record(pair, 1000, each)
    moves.settle()
    assert moves.seconds(1000, (0, 2)) == 0.1
    assert moves.seconds(1000, (2, 1)) == moves.seconds(1000) == 0.001


def test_bytes_between_the_measured_ones_lie_on_a_line_and_more_take_longer():
    moves = Moves()
    moves.enter((0, 1), 1000, 0.01)
    moves.enter((0, 1), 3000, 0.03)
    assert moves.seconds(2000, (0, 1)) == pytest.approx(0.02)
    assert moves.seconds(10, (0, 1)) == 0.01
    assert moves.seconds(6000, (0, 1)) == pytest.approx(0.06)


def test_a_move_that_became_slower_is_learned():
    moves = Moves()
    moves.enter((0, 1), 1000, 0.01)
    for _ in range(20):
        moves.observe((0, 1), 1000, 0.02)
    assert moves.seconds(1000, (0, 1)) == pytest.approx(0.02, rel=0.01)
    assert moves.seconds(1000) == pytest.approx(0.02, rel=0.01)


def test_the_first_move_of_a_pair_is_its_entry():
    moves = Moves()
    moves.observe((2, 3), 500, 0.5)
    assert moves.seconds(500, (2, 3)) == moves.seconds(500) == 0.5


def test_ever_new_sizes_of_states_are_bounded():
    moves = Moves()
    for size in range(1, 1000):
        moves.observe((0, 1), size, 0.01)
    assert len(moves.measured[0, 1]) == Moves.MAX_SIZES


def test_one_size_tells_the_latency_and_the_assumed_rate_the_rest():
    moves = Moves(assumed=Migration(latency_s=9.0, bytes_per_s=1e6))
    moves.enter((0, 1), 1000, 0.01)
    assert moves.seconds(10, (0, 1)) == 0.01
    assert moves.seconds(1_001_000, (0, 1)) == pytest.approx(1.01)
