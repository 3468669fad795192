from __future__ import annotations

from itertools import product

from epe.vae.bands import MAX_BANDS, MIN_ROWS, Bands, bands_of


def test_bands_are_as_even_as_they_go_and_follow_from_the_height_alone() -> None:
    assert bands_of(128).rows == (16,) * 8
    assert bands_of(60).rows == (9, 9, 9, 9, 8, 8, 8)
    assert bands_of(4096).rows == (512,) * 8


def test_a_low_picture_is_one_band() -> None:
    assert [bands_of(height).rows for height in (1, 7, 15)] == [(1,), (7,), (15,)]


def test_every_band_has_the_rows_that_it_must_and_together_they_are_the_picture() -> None:
    for height in range(1, 400):
        bands = bands_of(height)
        assert bands.height == height
        assert len(bands) <= MAX_BANDS
        assert len(bands) == 1 or min(bands.rows) >= MIN_ROWS
        assert max(bands.rows) - min(bands.rows) <= 1
        assert [start + rows for start, rows in zip(bands.starts(), bands.rows, strict=True)][-1] == height


def test_each_position_of_a_lane_owns_neighbours_and_all_bands_have_an_owner() -> None:
    for num_bands, width in product(range(1, 9), range(1, 9)):
        owned = Bands((3,) * num_bands).owned(width=width)
        assert len(owned) == width
        assert [band for each in owned for band in each] == list(range(num_bands))
        assert max(map(len, owned)) - min(map(len, owned)) <= 1
        assert sum(map(bool, owned)) == min(width, num_bands)
