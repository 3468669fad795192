"""What one `epe generate` does, fully resolved: the flags' answer to the stage file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from msgspec import Struct

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
        _check_file(file, path=path)
    _check_folder(target.parent, path=path)
    return formats[target.suffix.lower()]


def _check_file(file: Path, *, path: str) -> None:
    try:
        is_folder = stat.S_ISDIR(os.stat(file).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return  # what is wrong with the folder is said of the folder
    except OSError as error:
        raise BadSetting(f"{file} cannot be written: {error.strerror}", path=path) from error
    if is_folder:
        raise BadSetting(f"{file} is a folder; give the name of a file", path=path)


def _check_folder(folder: Path, *, path: str) -> None:
    """The folder can be written, or made below the first one that exists."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise BadSetting(f"the folder {folder} cannot be made, because {there} is a file", path=path)
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadSetting(f"the folder {there} cannot be written", path=path)
