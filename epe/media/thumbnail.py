"""A small picture of a video: its first frame. Slow: call it from a thread."""

from __future__ import annotations

from io import BytesIO

from PIL import Image

from epe.errors import TaskFailed
from epe.messages import OutputFormat, Stage

# Its longer side, in pixels.
MAX_SIDE = 512
_QUALITY = 85


def thumbnail_of(video: bytes) -> bytes:
    """The first frame of a video file, as a WebP of at most `MAX_SIDE` pixels a side. Raises `TaskFailed` for a file in
    which there is none, or without PyAV (the extra `video`)."""
    try:
        import av
    except ImportError:
        raise TaskFailed(
            "a thumbnail needs PyAV, which is not installed; install epe[video]", stage=Stage.FINISH
        ) from None
    try:
        with av.open(BytesIO(video), "r") as container:
            frame = next(container.decode(video=0))
    except (av.FFmpegError, StopIteration) as error:
        raise TaskFailed(f"the video file cannot be read: {error!r}", stage=Stage.FINISH) from error
    image = Image.fromarray(frame.reformat(format="rgb24", src_colorspace="ITU709").to_ndarray())
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    file = BytesIO()
    image.save(file, OutputFormat.WEBP.value.upper(), quality=_QUALITY)
    return file.getvalue()
