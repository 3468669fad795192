"""The file of finished pixels, whatever its format."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from epe.config.stage import VideoCodec
from epe.media.picture import encode_image
from epe.media.video import encode_video
from epe.messages import OutputFormat

_MEDIA_TYPES = {
    OutputFormat.PNG: "image/png",
    OutputFormat.JPEG: "image/jpeg",
    OutputFormat.WEBP: "image/webp",
    OutputFormat.MP4: "video/mp4",
    OutputFormat.WEBM: "video/webm",
    OutputFormat.RAW: "application/octet-stream",
}


def media_type(output_format: OutputFormat) -> str:
    """The MIME type of a file of this format."""
    return _MEDIA_TYPES[output_format]


def encode_file(
    pixels: NDArray[np.uint8],
    *,
    format: OutputFormat,
    compression: int = 100,
    fps: int = 16,
    codec: VideoCodec = "auto",
) -> bytes:
    """The file of uint8 pixels (frames, height, width, 3): a video, or the picture that is the only frame.

    `fps` and `codec` are those of a video. Raw output has no file: its bytes are empty.
    """
    match format.holds:
        case "video":
            return encode_video(pixels, format=format, fps=fps, codec=codec, compression=compression)
        case "picture":
            (picture,) = pixels
            return encode_image(picture, format=format, compression=compression)
        case "array":
            return b""
