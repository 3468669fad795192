"""What the leader makes of latents on their way."""

from __future__ import annotations

from io import BytesIO

import pytest
import torch
from PIL import Image

from epe.config.request import resolve_request
from epe.families import family
from epe.messages import OutputFormat, Palette
from epe.runtime.leader import first_frame, render_preview

WHITE_BY_THE_FIRST_VALUE = Palette(weights=((1.0, 1.0, 1.0), *[(0.0, 0.0, 0.0)] * 16))


def test_the_preview_of_a_video_is_its_first_frame_and_nothing_else_is_kept():
    request = resolve_request(
        family("wan"), id="a", prompt="x", height=64, width=96, num_frames=9, output_format=OutputFormat.MP4
    )
    noise = torch.randn(1, 16, 3, 8, 12, generator=torch.Generator().manual_seed(1))
    latents = torch.zeros_like(noise)
    latents[:, 0, 0, :, 6:] = 1.0  # the right half of the first frame is white
    first = first_frame(latents)
    assert first.untyped_storage().nbytes() == latents.untyped_storage().nbytes() // 3
    file = render_preview(first, first_frame(noise), WHITE_BY_THE_FIRST_VALUE, request)
    image = Image.open(BytesIO(file))
    assert (image.format, image.size) == ("WEBP", (96, 64))
    left, right = (image.convert("L").getpixel((x, 32)) for x in (10, 86))
    assert (left, right) == (pytest.approx(0, abs=12), pytest.approx(255, abs=12))


def test_of_a_picture_all_is_looked_at():
    latents = torch.zeros(1, 16, 8, 8)
    assert first_frame(latents) is latents
