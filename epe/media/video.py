"""Frames to video files, which are opened again and counted before anybody gets them. Slow: call it from a thread.

PyAV (the extra `video`) brings the encoders. Which one may be used is the user's choice: AV1 and VP9 are free of
licence fees; H.264 plays everywhere, but its encoder is GPL and its patents are licensed, so it is only used
when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from epe.config.stage import VideoCodec
from epe.errors import BadSetting, TaskFailed
from epe.media.threads import no_new_real_time_threads
from epe.messages import OutputFormat, Stage

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import OutputContainer
    from av.video.stream import VideoStream

# ITU-T H.273: BT.709 primaries, transfer and matrix, in the range of broadcasts.
_BT709 = 1
_LIMITED_RANGE = 1


@dataclass(frozen=True, slots=True)
class _Encoder:
    """An encoder of PyAV's ffmpeg; `best_crf` to `worst_crf` is its span of quality."""

    name: str
    best_crf: int
    worst_crf: int
    options: dict[str, str]


_ENCODERS = {
    "av1": _Encoder("libsvtav1", 16, 63, {"preset": "8"}),
    "vp9": _Encoder("libvpx-vp9", 16, 63, {"b": "0", "deadline": "good", "cpu-used": "4", "row-mt": "1"}),
    "h264": _Encoder("libx264", 14, 51, {"preset": "medium"}),
}
_AUTO = ("av1", "vp9")


def check_codec(codec: VideoCodec, *, path: str) -> None:
    """Raises `BadSetting` at `path` when videos cannot be encoded as wanted: before anything is drawn."""
    try:
        _encoder(codec, OutputFormat.MP4)
    except LookupError as error:
        raise BadSetting(str(error), path=path) from None


def encode_video(
    pixels: NDArray[np.uint8],
    *,
    format: OutputFormat,
    fps: int,
    codec: VideoCodec = "auto",
    compression: int = 100,
) -> bytes:
    """The file of one video; `pixels` is uint8 (frames, height, width, 3) with even sides, `fps` frames a second.

    A smaller `compression` (0 to 100) asks for a smaller file. WebM holds no H.264 and takes VP9 instead. The
    same pixels give the same file. Raises `TaskFailed` where the file cannot be made, or does not hold what it
    should.
    """
    _check_pixels(pixels)
    if not 0 <= compression <= 100:
        raise ValueError(f"compression is {compression}; 0 to 100 is allowed")
    # AV1's encoder writes its settings on the standard error unless it is told to name errors alone.
    os.environ.setdefault("SVT_LOG", "1")
    try:
        import av

        data = _encoded(pixels, format, fps, _encoder(codec, format), compression)
        sizes = frame_sizes(data)
    except (LookupError, av.FFmpegError) as error:
        raise TaskFailed(f"the {format} file cannot be made: {error}", stage=Stage.FINISH) from error
    check_frames(sizes, num_frames=len(pixels), height=pixels.shape[1], width=pixels.shape[2])
    return data


def frame_sizes(data: bytes) -> tuple[tuple[int, int], ...]:
    """(height, width) of every frame of a video file, each of them decoded."""
    import av

    with av.open(BytesIO(data), "r") as container:
        return tuple((frame.height, frame.width) for frame in container.decode(video=0))


def check_frames(sizes: tuple[tuple[int, int], ...], *, num_frames: int, height: int, width: int) -> None:
    """Raises `TaskFailed` unless a file holds just the frames that were asked for."""
    if sizes != ((height, width),) * num_frames:
        found = ", ".join(sorted({f"{w}x{h}" for h, w in sizes})) or "none"
        raise TaskFailed(
            f"the video file holds {len(sizes)} frames of {found}; {num_frames} of {width}x{height} were drawn",
            stage=Stage.FINISH,
        )


def _encoder(codec: VideoCodec, format: OutputFormat) -> _Encoder:
    """The encoder for a wish; raises `LookupError` with one sentence when there is none."""
    try:
        from av import codecs_available
    except ImportError:
        raise LookupError("video files need PyAV, which is not installed; install epe[video]") from None
    if codec == "h264" and format is OutputFormat.WEBM:
        codec = "vp9"
    for wanted in _AUTO if codec == "auto" else (codec,):
        if _ENCODERS[wanted].name in codecs_available:
            return _ENCODERS[wanted]
    there = ", ".join(each for each, encoder in _ENCODERS.items() if encoder.name in codecs_available)
    raise LookupError(f"PyAV has no encoder for {codec} here; it has those for {there or 'none'}")


def _encoded(
    pixels: NDArray[np.uint8], format: OutputFormat, fps: int, encoder: _Encoder, compression: int
) -> bytes:
    import av

    file = BytesIO()
    # Bit-exact: no dates, random names or versions in the file.
    with av.open(file, "w", format=format.value, container_options={"fflags": "+bitexact"}) as container:
        stream = _open_stream(container, encoder, fps=fps, compression=compression)
        stream.height, stream.width = pixels.shape[1], pixels.shape[2]
        with no_new_real_time_threads():
            stream.codec_context.open()
        for frame in _frames(pixels):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def _open_stream(container: OutputContainer, encoder: _Encoder, *, fps: int, compression: int) -> VideoStream:
    span = encoder.worst_crf - encoder.best_crf
    crf = encoder.worst_crf - round(span * compression / 100)
    options = {"crf": str(crf), "flags": "+bitexact", **encoder.options}
    stream = cast("VideoStream", container.add_stream(encoder.name, rate=fps, options=options))
    stream.pix_fmt = "yuv420p"
    context = stream.codec_context
    context.color_primaries = context.color_trc = context.colorspace = _BT709
    context.color_range = _LIMITED_RANGE
    return stream


def _frames(pixels: NDArray[np.uint8]) -> Iterator[VideoFrame]:
    """Each picture in the colours that players expect of a video."""
    import av

    for picture in pixels:
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        yield frame.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")


def _check_pixels(pixels: NDArray[np.uint8]) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3 or not len(pixels):
        raise ValueError(
            f"pixels are {pixels.dtype} {pixels.shape}; uint8 (frames, height, width, 3) is needed"
        )
    height, width = pixels.shape[1:3]
    if height % 2 or width % 2:
        raise ValueError(f"a video of {width}x{height} pixels has an odd side; sides must be even")
