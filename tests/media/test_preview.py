"""Rough pictures of latents in flight: their arithmetic."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from epe.media.preview import coloured, encode_preview, to_grid, without_noise
from epe.messages import OutputFormat, Palette

RANDOM = np.random.default_rng(7)
PALETTE = Palette(weights=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.5)))


def test_the_three_layouts_of_latents_give_the_same_grid():
    grid = RANDOM.standard_normal((4, 6, 3)).astype(np.float32)
    planes = grid.transpose(2, 0, 1)[None]
    video = np.stack([planes, planes * 2], axis=2)
    packed = grid.reshape(1, 24, 3)
    for latents in (planes, video, packed):
        assert np.array_equal(to_grid(latents, height=64, width=96), grid)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1, 0.0])
def test_what_shows_through_the_noise_is_found(share):
    picture = np.repeat(RANDOM.standard_normal((1, 16, 16, 16)), 4, axis=2).astype(np.float32)
    noise = RANDOM.standard_normal(picture.shape).astype(np.float32)
    found = without_noise((1 - share) * picture + share * noise, noise)
    # The noise is not quite at right angles to the picture, by about one in the root of the number of values.
    assert np.abs(found - picture).mean() < 0.02 / (1 - share)


def test_latents_that_are_all_noise_are_no_division_by_nothing():
    noise = RANDOM.standard_normal((1, 4, 8, 8)).astype(np.float32)
    assert np.isfinite(without_noise(noise, noise)).all()


def test_a_palette_gives_each_cell_its_colour():
    grid = np.array([[[0, 0, 9], [1, 0, 9]], [[0, 0.5, 9], [-1, 2, 9]]], dtype=np.float32)
    assert coloured(grid, PALETTE).tolist() == [[[0, 0, 128], [255, 0, 128]], [[0, 128, 128], [0, 255, 128]]]


@pytest.mark.parametrize("output_format", ["png", "jpeg", "webp"])
def test_a_preview_has_the_size_and_the_format_of_the_picture(output_format):
    latents, noise = (RANDOM.standard_normal((1, 3, 8, 12)).astype(np.float32) for _ in range(2))
    file = encode_preview(
        latents, noise, PALETTE, height=64, width=96, format=OutputFormat(output_format), compression=90
    )
    picture = Image.open(BytesIO(file))
    assert (picture.format.lower(), picture.size) == (output_format, (96, 64))
