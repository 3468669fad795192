from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from epe.errors import TaskFailed
from epe.media import encode_video
from epe.media.thumbnail import thumbnail_of
from epe.messages import OutputFormat

pytest.importorskip("av")
ORANGE, BLUE = (230, 120, 30), (20, 40, 200)


@pytest.mark.parametrize("format", [OutputFormat.MP4, OutputFormat.WEBM])
def test_a_thumbnail_is_the_first_frame_in_its_colours(format: OutputFormat):
    frames = np.array([ORANGE, BLUE, BLUE], np.uint8)[:, None, None].repeat(64, 1).repeat(128, 2)
    image = Image.open(BytesIO(thumbnail_of(encode_video(frames, format=format, fps=8))))
    assert (image.format, image.size) == ("WEBP", (128, 64))
    # Two lossy codecs, and colours at half the resolution.
    assert np.abs(np.asarray(image.convert("RGB"), dtype=int) - ORANGE).max() <= 6


def test_a_large_video_has_a_small_thumbnail():
    frames = np.full((1, 640, 1280, 3), 128, np.uint8)
    file = thumbnail_of(encode_video(frames, format=OutputFormat.MP4, fps=8))
    assert Image.open(BytesIO(file)).size == (512, 256)


def test_bytes_that_are_no_video_are_an_error_with_a_reason():
    with pytest.raises(TaskFailed, match="cannot be read"):
        thumbnail_of(bytes(range(256)))
