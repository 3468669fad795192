"""`epe serve` for machines without PyAV: the file of a video holds its frames as they are. For measurements alone.

python -m benchmarks.serve_raw_videos STAGE_FILE TRACE_FILE
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epe.cli import child
from epe.launch.serve import run_serve
from epe.media import file, video

COMMAND = (sys.executable, "-m", "benchmarks.serve_raw_videos")


def raw_video(pixels: NDArray[np.uint8], **options: Any) -> bytes:
    """The bytes of uint8 (frames, height, width, 3) in place of a file."""
    return pixels.tobytes()


def any_codec(codec: str, *, path: str) -> None:
    """In place of a look whether it can be encoded."""


def main() -> None:
    if len(sys.argv) == 1:  # as one of its own children
        file.encode_video = raw_video
        child.main()
        return
    video.check_codec = any_codec
    stage, trace = sys.argv[1:]
    sys.exit(run_serve(stage, log_level="debug", record_trace=trace, child_command=COMMAND))


if __name__ == "__main__":
    main()
