from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from epe.errors import TaskFailed
from epe.media import encode_image, media_type
from epe.messages import OutputFormat

LOSSY = [OutputFormat.JPEG, OutputFormat.WEBP]


def photograph(height: int = 96, width: int = 160) -> NDArray[np.uint8]:
    """Smooth colours with a little noise."""
    y, x = np.mgrid[0:height, 0:width] / 40
    colours = np.stack([np.sin(x + y), np.cos(y), np.sin(x * y)], axis=-1) * 110 + 128
    return np.clip(colours + np.random.default_rng(0).normal(0, 3, colours.shape), 0, 255).astype(np.uint8)


def decoded(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(BytesIO(data)).convert("RGB"))


@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    seed=st.integers(0, 99),
    compression=st.sampled_from([0, 49, 50, 100]),
)
def test_a_png_gives_back_every_pixel_at_every_compression(height, width, seed, compression):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    data = encode_image(pixels, format=OutputFormat.PNG, compression=compression)
    assert np.array_equal(decoded(data), pixels)


def test_pixels_that_lie_scattered_in_memory_are_encoded_as_they_look():
    pixels = photograph().transpose(1, 0, 2)[::-1]
    assert np.array_equal(decoded(encode_image(pixels, format=OutputFormat.PNG)), pixels)


@pytest.mark.parametrize("output_format", [OutputFormat.PNG, *LOSSY])
def test_the_file_is_what_its_format_and_media_type_say(output_format):
    image = Image.open(BytesIO(encode_image(photograph(), format=output_format)))
    assert image.format == output_format.upper()
    assert Image.MIME[image.format] == media_type(output_format)
    assert image.size == (160, 96)


@pytest.mark.parametrize("output_format", LOSSY)
def test_a_smaller_compression_gives_a_smaller_file_and_a_larger_error(output_format):
    pixels = photograph()
    sizes, errors = [], []
    for compression in (0, 30, 60, 100):
        data = encode_image(pixels, format=output_format, compression=compression)
        sizes.append(len(data))
        errors.append(np.abs(decoded(data).astype(int) - pixels).mean())
    assert sizes == sorted(set(sizes))
    assert errors == sorted(errors, reverse=True)


def test_a_png_of_low_compression_value_is_smaller_on_smooth_pictures():
    ramp = np.linspace(0, 255, 256 * 256 * 3).reshape(256, 256, 3).astype(np.uint8)
    small, fast = (encode_image(ramp, format=OutputFormat.PNG, compression=value) for value in (0, 100))
    assert len(small) < len(fast)


def test_the_best_jpeg_keeps_the_full_resolution_of_colour():
    stripes = np.zeros((64, 64, 3), dtype=np.uint8)
    stripes[:, ::2, 0] = 255
    stripes[:, 1::2, 2] = 255
    best = decoded(encode_image(stripes, format=OutputFormat.JPEG, compression=100))
    assert np.abs(best.astype(int) - stripes).max() < 16


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((1, 8, 8, 3), np.uint8),
        np.zeros((8, 8, 3), np.float32),
    ],
)
def test_what_is_no_picture_is_refused(pixels):
    with pytest.raises(ValueError, match="is needed"):
        encode_image(pixels, format=OutputFormat.PNG)


@pytest.mark.parametrize("compression", [-1, 101])
def test_a_compression_outside_its_range_is_refused(compression):
    with pytest.raises(ValueError, match="0 to 100"):
        encode_image(photograph(), format=OutputFormat.PNG, compression=compression)


def test_a_picture_that_the_format_cannot_hold_fails_with_a_way_out():
    with pytest.raises(TaskFailed, match="png holds any") as failed:
        encode_image(np.zeros((2, 16_384, 3), np.uint8), format=OutputFormat.WEBP)
    assert failed.value.stage == "finish"
