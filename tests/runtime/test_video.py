"""Videos through the whole runtime, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from epe import EmbeddedDiffusionRuntime
from epe.errors import BadRequest
from epe.messages import OutputFormat


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from epe.models.catalog import make_tiny

    directory = tmp_path_factory.mktemp("tiny") / "wan"
    make_tiny("wan", directory)
    return directory


@pytest.fixture
async def runtime(checkpoint: Path) -> AsyncIterator[EmbeddedDiffusionRuntime]:
    stage = {
        "name": "film",
        "factory": "wan",
        "gpu": [0],
        "device": "cpu",
        "video_codec": "vp9",
        "parallelism": {"scheduler": {"warmup_resolutions": [64]}},
        "factory_args": {
            "model_path": str(checkpoint),
            "default_width": 96,
            "default_height": 64,
            "num_frames": 5,
            "num_steps": 3,
        },
    }
    async with EmbeddedDiffusionRuntime.from_stage(stage) as runtime:
        yield runtime


async def test_a_file_shows_the_video_that_the_array_holds(runtime: EmbeddedDiffusionRuntime) -> None:
    av = pytest.importorskip("av")
    from io import BytesIO

    raw = await runtime.generate("a cat runs")
    file = await runtime.generate("a cat runs", output_format=OutputFormat.MP4, fps=12)
    pixels = np.asarray(raw.pixels)
    assert pixels.shape == (5, 64, 96, 3)
    assert file.media_type == "video/mp4"
    with av.open(BytesIO(file.data)) as container:
        assert container.streams.video[0].codec_context.name == "vp9"
        assert container.streams.video[0].average_rate == 12
        shown = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    assert shown.shape == pixels.shape
    # The encoder keeps brightness; noise in colour is what it drops first.
    assert np.corrcoef(shown.mean(axis=3).ravel(), pixels.mean(axis=3).ravel())[0, 1] > 0.9


async def test_videos_of_different_lengths_and_steps_are_drawn_beside_each_other(
    runtime: EmbeddedDiffusionRuntime,
) -> None:
    kinds = [(1 + 4 * (n % 3), n + 1) for n in range(4)]
    together = await asyncio.gather(
        *(runtime.generate("rain", num_frames=frames, num_steps=steps) for frames, steps in kinds)
    )
    for (frames, steps), result in zip(kinds, together, strict=True):
        alone = await runtime.generate("rain", num_frames=frames, num_steps=steps)
        assert np.asarray(result.pixels).shape == (frames, 64, 96, 3)
        assert np.array_equal(np.asarray(alone.pixels), np.asarray(result.pixels))


async def test_a_length_or_a_format_that_cannot_be_is_the_callers_error(
    runtime: EmbeddedDiffusionRuntime,
) -> None:
    with pytest.raises(BadRequest, match=r"num_frames 6 is not of the form 4n\+1; nearest are 5 and 9"):
        await runtime.generate("rain", num_frames=6)
    with pytest.raises(BadRequest, match="png holds a picture; wan draws a video"):
        await runtime.generate("rain", output_format=OutputFormat.PNG)
