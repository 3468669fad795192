"""From a family's name to its code, loaded when it is asked for. The only place that knows names."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch

from epe.errors import BadSetting
from epe.families import check_axis, family
from epe.graphs import Graphs
from epe.models.capturing import Capturable
from epe.models.checkpoint import quiet_imports
from epe.models.contract import Adapter
from epe.parallel import ONE_PLANE, Plane

_ROOMS = {
    "zimage": "epe.models.zimage",
    "flux1": "epe.models.flux1",
    "flux2-klein": "epe.models.flux2_klein",
    "qwen-image": "epe.models.qwen_image",
    "wan": "epe.models.wan",
}


def load_adapter(
    name: str,
    model_path: Path,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    cfg_parallel_degree: int = 1,
    attention_mode: str = "agkv",
    ulysses_degree: int | None = None,
    plane: Plane = ONE_PLANE,
    graphs: Graphs | None = None,
    compiled: bool = False,
    decodes_whole: bool = False,
) -> Adapter:
    """The adapter of family `name` on `device`, from a local checkpoint folder; of one in tensor-parallel planes,
    what `plane` needs. `graphs` capture its forward passes, but in planes, whose sums they would not see.
    `compiled` blocks, and a compiled decoder if it `decodes_whole`, have other last bits.

    Raises `BadSetting` for a family or folder that does not fit, `StartFailed` for one that cannot be read.
    """
    planes = {} if plane.degree == 1 else {"plane": plane}
    if planes:
        check_axis(family(name), "tp", path="parallelism.model.tensor_parallel_degree")
    adapter: Adapter = _part(name, "adapter").load(
        model_path,
        device=device,
        dtype=dtype,
        cfg_parallel_degree=cfg_parallel_degree,
        attention_mode=attention_mode,
        ulysses_degree=ulysses_degree,
        **planes,
    )
    if graphs is not None and not planes and isinstance(adapter, Capturable):
        adapter.use_graphs(graphs)
    if compiled and isinstance(adapter, Capturable):
        adapter.compile_blocks()
        if decodes_whole:
            adapter.compile_decoder()
    return adapter


def make_tiny(name: str, directory: Path, *, seed: int = 0) -> None:
    """Write a small random-weight checkpoint of family `name`: the same seed writes the same bytes."""
    _part(name, "tiny").make_tiny(directory, seed=seed)


def _part(name: str, part: str) -> ModuleType:
    family(name)
    if name not in _ROOMS:
        raise BadSetting(f"family {name!r} is not yet available; available are {', '.join(_ROOMS)}")
    with quiet_imports():
        return import_module(f"{_ROOMS[name]}.{part}")
