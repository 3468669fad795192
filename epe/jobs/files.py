"""Files that are there whole or not at all, also after a power failure. All of it blocks, and raises `OSError`."""

from __future__ import annotations

import os
from pathlib import Path

_UNFINISHED = ".new"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file beside its place, have it reach the disk, and put it there."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)  # a full disk needs the room
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_others(folder: Path, names: set[str]) -> int:
    """Remove the files that are none of `names`; says how many there were."""
    others = [path for path in folder.iterdir() if path.name not in names]
    for path in others:
        path.unlink()
    return len(others)
