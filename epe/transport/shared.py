"""Arrays in memory that two processes of one host share: nothing is copied on the way, nothing lies in a file system,
and nothing is left when both have let go, however they ended."""

from __future__ import annotations

import mmap
import os
import secrets

import numpy as np

from epe.messages import SharedArray

# What takes no longer to send than to share.
SMALL_BYTES = 1 << 20
# Of Linux alone.
IS_POSSIBLE = hasattr(os, "memfd_create")
_PREFIX = "epe-"


class Offer:
    """An array in memory of its own, until it is closed; `note` is how another process finds it."""

    def __init__(self, array: np.ndarray) -> None:
        token = _PREFIX + secrets.token_hex(16)
        self._descriptor = os.memfd_create(token)
        try:
            _write(self._descriptor, memoryview(np.ascontiguousarray(array).data).cast("B"))
        except OSError:
            self.close()
            raise
        self.note = SharedArray(
            process=os.getpid(),
            descriptor=self._descriptor,
            token=token,
            dtype=array.dtype.str,
            shape=array.shape,
        )

    def close(self) -> None:
        """Let go; who has taken it keeps it."""
        os.close(self._descriptor)


def take(note: SharedArray) -> np.ndarray:
    """The array of an offer, to be read and not written. Raises `OSError` where it cannot be reached from here: on
    another host, or when its process is gone."""
    path = f"/proc/{note.process}/fd/{note.descriptor}"
    # On another host the same numbers may mean something else, which is not opened.
    if not os.readlink(path).startswith(f"/memfd:{note.token}"):
        raise FileNotFoundError(f"{path} is not what was offered")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    return np.frombuffer(memory, dtype=np.dtype(note.dtype)).reshape(note.shape)


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
