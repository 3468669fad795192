from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epe.messages import Stage
from epe.planning.costs import CostKey, CostTable


def key(tokens: int = 1024, width: int = 1, conditions: int = 2) -> CostKey:
    return CostKey(stage=Stage.DENOISE, tokens=tokens, width=width, conditions=conditions)


def test_the_table_holds_the_median_of_the_warm_up_samples():
    table = CostTable()
    for seconds in (9.0, 1.0, 1.1):
        table.record(key(), seconds)
    table.settle()
    assert table.seconds(key()) == 1.1


def test_a_correction_belongs_to_one_key_alone():
    table = CostTable({key(1024): 1.0, key(4096): 4.0})
    for _ in range(30):
        table.observe(key(1024), 2.0)
    assert table.seconds(key(1024)) == pytest.approx(2.0, rel=0.01)
    assert table.seconds(key(4096)) == 4.0
    assert table.seconds(key(2048)) == pytest.approx(2.0)


def test_a_width_that_was_slow_once_is_not_slow_for_ever():
    """While a neighbour had the machine, two ranks took as long as one: they were not asked again."""
    table = CostTable({key(): 1.0, key(width=2): 0.6})
    table.observe(key(width=2), 1.5)
    assert table.seconds(key(width=2)) > 1.0
    for _ in range(40):
        table.observe(key(), 1.0)
    assert table.seconds(key(width=2)) < 0.8


def test_a_width_that_is_slow_whenever_it_is_used_stays_slow():
    table = CostTable({key(): 1.0, key(width=2): 0.6})
    for _ in range(20):
        table.observe(key(width=2), 1.5)
        table.observe(key(), 1.0)
    for _ in range(40):
        table.observe(key(), 1.0)
    assert table.seconds(key(width=2)) == pytest.approx(1.5, rel=0.01)


def test_a_wrong_first_sample_does_not_poison_the_correction():
    table = CostTable({key(): 1.0})
    table.observe(key(), 50.0)
    for _ in range(20):
        table.observe(key(), 1.0)
    assert table.seconds(key()) == pytest.approx(1.0)


def test_a_cost_that_has_truly_changed_is_believed_the_second_time():
    table = CostTable({key(): 1.0})
    table.observe(key(), 1.0)
    table.observe(key(), 20.0)
    assert table.seconds(key()) == 1.0
    table.observe(key(), 21.0)
    assert table.seconds(key()) == pytest.approx(20.5, rel=0.01)


def test_a_single_outlier_is_forgotten():
    table = CostTable({key(): 1.0})
    for seconds in (1.0, 30.0, 1.0, 30.0, 1.0):
        table.observe(key(), seconds)
    assert table.seconds(key()) == pytest.approx(1.0)


def test_sizes_between_the_measured_ones_are_fitted_by_tokens():
    table = CostTable({key(1000): 1.0, key(4000): 8.0})
    assert 1.0 < table.seconds(key(2000)) < 8.0
    assert table.seconds(key(2000)) == pytest.approx(8.0**0.5)
    assert table.seconds(key(8000)) > 8.0


@pytest.mark.parametrize("seconds", [0.02, 0.5])
def test_two_noisy_sizes_close_together_say_nothing_absurd_of_one_that_is_far(seconds: float):
    table = CostTable({key(256): 0.09, key(323): seconds})
    assert 0.09 * (32 / 256) ** 2 <= table.seconds(key(32)) <= 0.09
    assert seconds <= table.seconds(key(4096)) <= seconds * (4096 / 323) ** 2


def test_a_single_measured_size_scales_with_tokens_width_and_conditions():
    table = CostTable({key(1000, width=2, conditions=2): 1.0})
    assert table.seconds(key(3000, width=2, conditions=2)) == pytest.approx(3.0)
    assert table.seconds(key(1000, width=4, conditions=2)) == pytest.approx(0.5)
    assert table.seconds(key(1000, width=2, conditions=1)) == pytest.approx(0.5)


def test_an_empty_table_still_says_that_more_work_takes_longer():
    table = CostTable()
    assert table.seconds(key(4096)) > table.seconds(key(1024)) > 0
    assert table.seconds(key(4096, width=4)) < table.seconds(key(4096))


def test_the_first_measurement_of_an_unknown_size_informs_its_other_widths():
    table = CostTable()
    guess = table.seconds(key(1024, width=1))
    table.observe(key(1024, width=4), 10 * guess)
    assert table.seconds(key(1024, width=4)) == pytest.approx(10 * guess)
    assert table.seconds(key(1024, width=1)) == pytest.approx(40 * guess)


def test_a_wrong_first_measurement_of_an_unknown_size_is_recovered_from():
    table = CostTable()
    table.observe(key(), 500.0)
    for _ in range(5):
        table.observe(key(), 1.0)
    assert table.seconds(key()) == pytest.approx(1.0)


def test_what_nine_of_ten_take_follows_the_samples_of_service():
    table = CostTable({key(): 1.0})
    for index in range(32):
        table.observe(key(), 2.0 if index % 4 == 3 else 1.0)
    assert table.safe_s(key()) == pytest.approx(2.0)
    assert table.seconds(key()) < 1.6


def test_what_nine_of_ten_take_comes_from_the_warm_up_until_service_has_shown_enough():
    table = CostTable()
    for seconds in (1.0, 1.0, 1.0, 1.0, 1.5):
        table.record(key(), seconds)
    table.settle()
    at_start_s = table.safe_s(key())
    assert 1.0 < at_start_s <= 1.5
    table.observe(key(), 2.0)
    assert table.safe_s(key()) == pytest.approx(2 * at_start_s)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=80))
def test_what_nine_of_ten_take_is_never_less_than_what_is_usual(samples: list[float]):
    table = CostTable({key(): 1.0})
    for seconds in samples:
        table.observe(key(), seconds)
    assert table.safe_s(key()) >= table.seconds(key())


def test_a_time_says_what_it_rests_on():
    table = CostTable({key(1000): 1.0, key(4000): 8.0})
    basis = {tokens: table.fit(key(tokens)).basis for tokens in (499, 500, 1000, 2000, 8000, 8001)}
    assert basis == {
        499: "extrapolated",
        500: "fitted",
        1000: "measured",
        2000: "fitted",
        8000: "fitted",
        8001: "extrapolated",
    }
    assert table.fit(key(1000, width=3)).basis == "extrapolated"
    assert CostTable().fit(key()).basis == "guessed"


def test_an_encode_costs_the_same_whatever_the_size_of_the_picture():
    small, large = (CostKey(stage=Stage.ENCODE, tokens=tokens) for tokens in (256, 4096))
    table = CostTable({small: 0.05})
    assert table.seconds(large) == 0.05
    assert table.fit(large).basis == "fitted"


def test_a_new_entry_is_seen_by_fits_that_were_asked_before():
    table = CostTable({key(1000): 1.0})
    assert table.seconds(key(2000)) == pytest.approx(2.0)
    table.observe(key(4000), 16.0)
    assert table.seconds(key(2000)) == pytest.approx(4.0)


def test_a_service_asked_for_ever_new_sizes_keeps_a_bounded_table():
    table = CostTable()
    for tokens in range(1, CostTable.MAX_KEYS + 100):
        table.observe(key(tokens), 1.0)
    assert len(table.measured) == CostTable.MAX_KEYS


def test_every_change_of_the_table_is_an_edition_of_its_own():
    table = CostTable({key(1024): 1.0})
    editions = [table.edition]
    for change in (
        lambda: table.observe(key(1024), 1.1),
        lambda: table.observe(key(4096), 5.0),
        table.settle,
    ):
        table.record(key(256), 0.2)
        change()
        editions.append(table.edition)
    assert editions == sorted(set(editions))
    table.seconds(key(9999))
    assert table.edition == editions[-1]


def test_what_is_kept_is_the_median_and_not_the_last_bad_minute():
    table = CostTable({key(): 1.0})
    for seconds in [1.0] * 20 + [2.0] * 5:
        table.observe(key(), seconds)
    assert table.seconds(key()) > 1.9
    assert table.usual_s(key()) == 1.0
