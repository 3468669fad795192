"""Names the weights in a folder, so that ranks draw together only where they have loaded the same ones."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

_SAMPLE_BYTES = 64


def weights_digest(folder: Path) -> str:
    """From the beginning, the middle and the end of every tensor, since to read all of a large model takes minutes.
    Weights that differ nowhere else are taken for equal. Blocking; no times and no paths count, so every host
    that has a copy agrees."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        digest.update(path.relative_to(folder).as_posix().encode())
        _add_file(digest, path)
    return digest.hexdigest()[:16]


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    """The format: the length of a JSON header as 8 bytes, the header, the tensors at its `data_offsets`."""
    file = os.open(path, os.O_RDONLY)
    try:
        length = int.from_bytes(os.pread(file, 8, 0), "little")
        header = os.pread(file, length, 8)
        digest.update(header)
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        for name in sorted(tensors):
            begin, end = tensors[name]["data_offsets"]
            for at in (begin, (begin + end) // 2, max(begin, end - _SAMPLE_BYTES)):
                digest.update(os.pread(file, min(_SAMPLE_BYTES, end - at), 8 + length + at))
    finally:
        os.close(file)
