"""The files of jobs. All of it blocks, and raises `OSError`."""

from __future__ import annotations

import os
from pathlib import Path

from epe.files import write_whole


def write_lasting(path: Path, data: bytes) -> None:
    """Write a file that is there, under its name, whatever happens from now on."""
    write_whole(path, data)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # its names reach the disk
    finally:
        os.close(folder)


def remove_others(folder: Path, names: set[str]) -> int:
    """Remove the files that are none of `names`; says how many there were."""
    others = [path for path in folder.iterdir() if path.name not in names]
    for path in others:
        path.unlink()
    return len(others)
