from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epe.geometry import MIN_ROWS
from epe.parallel.shares import SHORT_ROWS, share_rows


@given(num_rows=st.integers(1, 5000), width=st.integers(1, 8))
def test_a_replicable_stream_always_has_a_share_and_short_ones_are_whole(num_rows: int, width: int) -> None:
    share = share_rows(num_rows, width=width, replicable=True)
    assert share.num_rows == num_rows
    assert share.replicated is (num_rows <= SHORT_ROWS)
    if share.replicated:
        assert all(share.bounds(p) == (0, num_rows) and share.sent(p) == 0 for p in range(width))


@given(num_rows=st.integers(MIN_ROWS * 8, 5000), width=st.integers(1, 8))
def test_the_parts_of_a_stream_are_contiguous_and_complete(num_rows: int, width: int) -> None:
    share = share_rows(num_rows, width=width, replicable=False)
    bounds = [share.bounds(position) for position in range(width)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == share.num_rows == num_rows
    assert all(end == start for (_, end), (start, _) in pairwise(bounds))
    assert all(share.sent(p) == share.sizes[p] >= MIN_ROWS for p in range(width))


def test_long_text_is_whole_where_a_rank_would_have_too_few_rows() -> None:
    assert share_rows(512, width=128, replicable=True).replicated is False
    assert share_rows(512, width=129, replicable=True).replicated is True


def test_a_stream_that_is_not_replicable_needs_enough_rows() -> None:
    with pytest.raises(ValueError, match="fewer than 4 of 11 rows; the widest lane for them is 2"):
        share_rows(11, width=3, replicable=False)
