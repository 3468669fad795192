"""What one `epe generate` does, fully resolved: the flags' answer to the stage file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from epe.config.outputs import check_writable
from epe.config.stage import Device, Dtype, VideoCodec
from epe.config.transport import Transport
from epe.errors import BadSetting
from epe.messages import OutputFormat, Request

FORMATS = {
    "picture": {
        ".png": OutputFormat.PNG,
        ".jpg": OutputFormat.JPEG,
        ".jpeg": OutputFormat.JPEG,
        ".webp": OutputFormat.WEBP,
    },
    "video": {".mp4": OutputFormat.MP4, ".webm": OutputFormat.WEBM},
}

FlagValue = str | int | float | bool | tuple[float, ...]


class GenerateOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One picture or video to draw and where it goes.

    `cfg_parallel_degree` 2 runs the guidance branches each alone, 1 as one batch. `parallel_vae` and
    `vae_parallel_halo` are what was asked for (None: not asked). `flags` are the flags that were given,
    for the sidecar, and `version` is that of the program.
    """

    family: str
    model_path: str
    request: Request
    output: str
    device: Device = "auto"
    dtype: Dtype = "auto"
    cfg_parallel_degree: Literal[1, 2] = 1
    tensor_parallel_degree: int = 1
    transport: Transport = Transport()
    video_codec: VideoCodec = "auto"
    parallel_vae: bool | None = None
    vae_parallel_halo: int | None = None
    version: str
    flags: dict[str, FlagValue] = {}

    @property
    def sidecar(self) -> str:
        """Where the facts about the picture go: `x.png` has them in `x.json`."""
        return str(Path(self.output).with_suffix(".json"))


def check_output(output: str, *, makes: Literal["picture", "video"], path: str) -> OutputFormat:
    """The format of an output file; raises `BadSetting` at `path` where it could not be written later."""
    target, formats = Path(output), FORMATS[makes]
    if target.suffix.lower() not in formats:
        known = ", ".join(formats)
        raise BadSetting(f"{output!r} does not end in one of {known}", path=path)
    for file in (target, target.with_suffix(".json")):
        check_writable(file, path=path)
    return formats[target.suffix.lower()]
