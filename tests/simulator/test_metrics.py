from __future__ import annotations

import pytest

from epe.simulator.metrics import interval, mean_classes, measure, measure_classes, percentile, spread
from tests.simulator.scenes import LARGE, OneRank, arrival, run


def test_the_numbers_of_a_run_can_be_reckoned_by_hand():
    outcome = run(
        OneRank(),
        arrival("a", deadline_s=11.0),
        arrival("b", deadline_s=20.0),
        arrival("c", 2.0, size=LARGE),
        world=2,
    )
    # a: 0 to 11, b: 11 to 22, c: 22 to 41, alone each on rank 0 of 2.
    found = measure(outcome)
    assert found.slo_attainment == pytest.approx(2 / 3)
    assert found.weighted_goodput == pytest.approx((11 + 19) / (11 + 11 + 19))
    assert found.throughput_rps == pytest.approx(3 / 41)
    assert found.mean_latency_s == pytest.approx((11 + 22 + 39) / 3)
    assert found.p50_latency_s == 22
    assert found.useful_busy == pytest.approx(41 / 82)
    assert found.max_normalized_latency == pytest.approx(39 / 11)
    assert found.starved == 0
    assert found.migrations_per_request == 0
    by_class = measure_classes(outcome)
    assert (by_class["small"].slo_attainment, by_class["large"].slo_attainment) == (0.5, 1.0)
    assert by_class["small"].requests == 2


def test_a_request_starves_when_it_waits_ten_times_its_best_latency_at_a_time():
    many = [arrival(f"r{i}") for i in range(7)]
    # The k-th waits 11 k seconds; the best latency is 7 s.
    assert measure(run(OneRank(), *many, world=2)).starved == 0
    assert measure(run(OneRank(), *many, arrival("last"), world=2)).starved == 1


def test_an_interval_is_students():
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3 - 1.963, 3 + 1.963), abs=1e-3)
    assert interval([2.0]) == (2.0, 2.0)


def test_seeds_are_averaged_and_their_spread_is_kept():
    runs = [measure(run(OneRank(), arrival("a", deadline_s=limit))) for limit in (11.0, 5.0)]
    found = spread(runs)
    assert found.mean.slo_attainment == 0.5
    low, high = found.ci95["slo_attainment"]
    assert low < 0 < 1 < high
    assert found.ci95["mean_latency_s"] == (11.0, 11.0)


def test_a_class_is_averaged_over_the_seeds_that_have_it():
    first = measure_classes(run(OneRank(), arrival("a", deadline_s=11.0)))
    second = measure_classes(run(OneRank(), arrival("a", deadline_s=1.0), arrival("b", size=LARGE)))
    found = mean_classes([first, second])
    assert found["small"].slo_attainment == 0.5
    assert found["large"].requests == 1


def test_percentiles_lie_between_the_values():
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([1.0, 2.0], 0.99) == pytest.approx(1.99)
    assert percentile([], 0.5) == 0
