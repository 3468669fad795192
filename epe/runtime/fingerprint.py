"""Names everything that measured costs depend on: where one thing differs, they are measured again."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import torch

from epe import __version__
from epe.config.demo import model_folder
from epe.config.stage import Stage

LIBRARIES = ("torch", "diffusers", "transformers")


def fingerprint(stage: Stage, *, device: str, world_size: int) -> str:
    """One rank's part: model, device, libraries, numerics, and how the work is divided. Reads the checkpoint's
    configuration, so call it off the event loop."""
    cp, model = stage.parallelism.cp, stage.parallelism.model
    parts = (
        stage.factory,
        checkpoint_digest(model_folder(stage.factory_args.model_path)),
        stage.dtype,
        stage.numerics,
        *((processor_name(), f"{torch.get_num_threads()} threads") if device == "cpu" else (device,)),
        *_versions(),
        f"cfg {model.cfg_parallel_degree} tp {model.tensor_parallel_degree} cp {cp.world_size} of {world_size}",
        f"{cp.attention_mode} {cp.ulysses_degree or 'all'}",
        f"{cp.agkv_transport} {cp.ulysses_transport}",
        "captured" if stage.capture.enabled else "not captured",
        "decode in bands" if stage.decodes_in_bands else "decode whole",
    )
    return "/".join(parts)


def checkpoint_digest(folder: Path) -> str:
    """The shape of a model: its configuration files, and the names and sizes of its weights. Weights of the same
    shape cost the same, so they are not read."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json" and "config" in path.name:
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
        elif path.suffix == ".safetensors":
            digest.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def processor_name() -> str:
    """The kind of processor, and how many of its cores this process may use."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    kind = found[1].strip() if found else platform.processor() or platform.machine()
    return f"cpu {kind}, {len(os.sched_getaffinity(0))} cores"


def _versions() -> Iterator[str]:
    yield f"epe {__version__}"
    yield from (f"{library} {version(library)}" for library in LIBRARIES)
    if torch.version.cuda:
        yield f"cuda {torch.version.cuda}"
