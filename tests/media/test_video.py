from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from epe.errors import BadSetting, TaskFailed
from epe.media import encode_file, encode_video, media_type
from epe.media.video import check_codec, check_frames, frame_sizes
from epe.messages import OutputFormat

av = pytest.importorskip("av")

# What a file is asked for, and what a player finds in it.
CODECS = [
    (OutputFormat.MP4, "auto", {"av1", "libdav1d", "vp9"}),
    (OutputFormat.MP4, "av1", {"av1", "libdav1d"}),
    (OutputFormat.MP4, "vp9", {"vp9"}),
    (OutputFormat.MP4, "h264", {"h264"}),
    (OutputFormat.WEBM, "auto", {"av1", "libdav1d", "vp9"}),
    (OutputFormat.WEBM, "h264", {"vp9"}),
]


def film(num_frames: int = 9, height: int = 64, width: int = 96) -> NDArray[np.uint8]:
    """Smooth colours that move."""
    y, x = np.mgrid[0:height, 0:width] / 40
    frames = [
        np.stack([np.sin(x + y + t / 4), np.cos(y - t / 5), np.sin(x * y + t / 6)], axis=-1)
        for t in range(num_frames)
    ]
    return np.clip(np.stack(frames) * 110 + 128, 0, 255).astype(np.uint8)


def shown(data: bytes) -> NDArray[np.uint8]:
    with av.open(BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.mark.parametrize(("output_format", "codec", "found"), CODECS)
def test_the_file_is_what_its_format_and_codec_say_and_looks_like_its_pixels(output_format, codec, found):
    pixels = film()
    data = encode_video(pixels, format=output_format, fps=24, codec=codec)
    with av.open(BytesIO(data)) as container:
        (stream,) = container.streams
        assert output_format in container.format.name.split(",")
        assert stream.codec_context.name in found
        assert stream.average_rate == 24
    assert np.abs(shown(data).astype(int) - pixels).mean() < 4


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed by Linux alone")
def test_no_encoder_leaves_a_thread_that_starves_the_machine():
    encoding = ThreadPoolExecutor(1)
    policies: set[int] = set()

    def look() -> None:
        policies.update(os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task"))

    for codec in ("av1", "vp9"):
        encoding.submit(encode_video, film(), format=OutputFormat.MP4, fps=24, codec=codec).result()
        encoding.submit(look).result()
    assert policies == {os.SCHED_OTHER}


@pytest.mark.parametrize("num_frames", [1, 2, 5, 17])
@pytest.mark.parametrize("output_format", [OutputFormat.MP4, OutputFormat.WEBM])
def test_the_file_has_just_the_frames_that_were_drawn(num_frames, output_format):
    data = encode_video(film(num_frames, 80, 64), format=output_format, fps=16)
    assert frame_sizes(data) == ((80, 64),) * num_frames


def test_the_same_pixels_give_the_same_file():
    pixels = film()
    for output_format in (OutputFormat.MP4, OutputFormat.WEBM):
        first, second = (encode_video(pixels, format=output_format, fps=16) for _ in range(2))
        assert first == second


def test_colours_are_those_of_bt_709():
    """Red is 63 of 255 there, and 82 in the matrix of old television, which players take for small videos."""
    red = np.zeros((2, 64, 64, 3), np.uint8)
    red[..., 0] = 255
    data = encode_video(red, format=OutputFormat.MP4, fps=16, codec="vp9")
    with av.open(BytesIO(data)) as container:
        frame = next(container.decode(video=0))
        assert abs(int(np.median(frame.to_ndarray(format="yuv420p")[:64])) - 63) <= 2
        assert (frame.colorspace, frame.color_range) == (1, 1)


def test_a_smaller_compression_gives_a_smaller_file():
    noise = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    sizes = [
        len(encode_video(noise, format=OutputFormat.MP4, fps=16, codec=codec, compression=compression))
        for codec in ("av1", "vp9", "h264")
        for compression in (0, 100)
    ]
    assert all(small < large for small, large in zip(sizes[::2], sizes[1::2], strict=True))


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (np.zeros((8, 8, 3), np.uint8), "is needed"),
        (np.zeros((1, 8, 8, 4), np.uint8), "is needed"),
        (np.zeros((1, 8, 8, 3), np.float32), "is needed"),
        (np.zeros((0, 8, 8, 3), np.uint8), "is needed"),
        (np.zeros((33, 34, 51, 3), np.uint8), "51x34 pixels has an odd side"),
        (np.zeros((1, 35, 50, 3), np.uint8), "50x35 pixels has an odd side"),
    ],
)
def test_what_is_no_video_is_refused(pixels, words):
    with pytest.raises(ValueError, match=words):
        encode_video(pixels, format=OutputFormat.MP4, fps=16)


def test_a_file_with_other_frames_than_were_drawn_is_never_given_out():
    with pytest.raises(TaskFailed, match="holds 4 frames of 96x64; 5 of 96x64 were drawn") as failed:
        check_frames(((64, 96),) * 4, num_frames=5, height=64, width=96)
    assert failed.value.stage == "finish"
    with pytest.raises(TaskFailed, match="holds 1 frames of 64x96"):
        check_frames(((96, 64),), num_frames=1, height=64, width=96)
    with pytest.raises(TaskFailed, match="holds 0 frames of none"):
        check_frames((), num_frames=1, height=64, width=96)


def test_an_encoder_that_cannot_take_the_size_fails_with_a_sentence():
    with pytest.raises(TaskFailed, match="the mp4 file cannot be made") as failed:
        encode_video(np.zeros((1, 2, 2, 3), np.uint8), format=OutputFormat.MP4, fps=16, codec="av1")
    assert failed.value.stage == "finish"


def test_a_codec_without_an_encoder_is_refused_up_front(monkeypatch):
    check_codec("auto", path="video_codec")
    monkeypatch.setattr(av, "codecs_available", {"libvpx-vp9"})
    check_codec("auto", path="video_codec")
    with pytest.raises(BadSetting, match=r"^video_codec: PyAV has no encoder for h264 here; .* vp9$"):
        check_codec("h264", path="video_codec")


def test_without_pyav_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(BadSetting, match=r"--video-codec: video files need PyAV.*install epe\[video\]"):
        check_codec("auto", path="--video-codec")


def test_pixels_become_the_file_of_their_format():
    picture = film(1)
    assert encode_file(picture, format=OutputFormat.PNG).startswith(b"\x89PNG")
    assert encode_file(film(), format=OutputFormat.RAW) == b""
    video = encode_file(film(), format=OutputFormat.MP4, fps=12)
    assert len(frame_sizes(video)) == 9
    with pytest.raises(ValueError, match="too many values"):
        encode_file(film(2), format=OutputFormat.PNG)


def test_every_format_has_a_media_type():
    assert {media_type(each).partition("/")[0] for each in OutputFormat} == {"image", "video", "application"}
