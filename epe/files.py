"""Files that readers see whole or not at all, also after a power failure. All of it blocks, and raises `OSError`."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: str | Path, data: bytes) -> None:
    """Write a file beside its place, have it reach the disk, and put it there; its folder is made if need be."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.parent / f".{secrets.token_hex(8)}.new"
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)  # a full disk needs the room
        raise
