"""Names the weights in a folder, so that ranks draw together only where they have loaded the same ones."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from epe.errors import BadSetting

_SAMPLE_BYTES = 64


def weights_digest(folder: Path) -> str:
    """From the beginning, the middle and the end of every tensor, since to read all of a large model takes minutes.
    Weights that differ nowhere else are taken for equal. Blocking; no times and no paths count, so every host
    that has a copy agrees. Raises `BadSetting` for a file that is damaged."""
    digest = hashlib.sha256()
    for name, path in _files(folder):
        digest.update(name.encode())
        with _tensors(path) as (file, tensors, offset):
            for key in sorted(tensors):
                digest.update(key.encode())
                begin, end = tensors[key]["data_offsets"]
                for at in (begin, (begin + end) // 2, max(begin, end - _SAMPLE_BYTES)):
                    digest.update(os.pread(file, min(_SAMPLE_BYTES, end - at), offset + at))
    return digest.hexdigest()[:16]


def shapes_digest(folder: Path) -> str:
    """From the names, types and shapes of all tensors. Blocking; raises `BadSetting` for a file that is damaged."""
    digest = hashlib.sha256()
    for name, path in _files(folder):
        with _tensors(path) as (_, tensors, _):
            shapes = {key: (tensor["dtype"], tensor["shape"]) for key, tensor in tensors.items()}
        digest.update(f"{name} {json.dumps(shapes, sort_keys=True)}".encode())
    return digest.hexdigest()[:16]


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*.safetensors")):
        yield path.relative_to(folder).as_posix(), path


@contextmanager
def _tensors(path: Path) -> Iterator[tuple[int, dict[str, Any], int]]:
    """The open file, its header, and where its tensors begin. The format: the length of a JSON header as 8 bytes, the
    header, the tensors at their `data_offsets`."""
    file = os.open(path, os.O_RDONLY)
    try:
        length = int.from_bytes(os.pread(file, 8, 0), "little")
        if length > os.fstat(file).st_size:
            raise _damaged(path)
        header = _header(path, os.pread(file, length, 8))
        yield file, header, 8 + length
    finally:
        os.close(file)


def _header(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(raw)
        header.pop("__metadata__", None)
    except (ValueError, AttributeError):
        raise _damaged(path) from None
    return header


def _damaged(path: Path) -> BadSetting:
    return BadSetting(f"{path} is no whole safetensors file; copy it anew", path="factory_args.model_path")
