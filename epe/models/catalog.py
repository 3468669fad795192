"""From a family's name to its code, loaded when it is asked for. The only place that knows names."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from epe.errors import BadSetting
from epe.families import check_axis, family
from epe.models.capturing import Capturable
from epe.models.checkpoint import quiet_imports
from epe.models.contract import Adapter
from epe.models.loading import Loading
from epe.models.remembering import Remembered
from epe.planning.calibration import WARM_UP_PROMPT

_ROOMS = {
    "zimage": "epe.models.zimage",
    "flux1": "epe.models.flux1",
    "flux2-klein": "epe.models.flux2_klein",
    "qwen-image": "epe.models.qwen_image",
    "wan": "epe.models.wan",
}


def load_adapter(name: str, model_path: Path, loading: Loading) -> Adapter:
    """The adapter of family `name`, from a local checkpoint folder; of one in tensor-parallel planes, what the plane
    needs. Its graphs capture the forward passes, but in planes, whose sums they would not see.

    Raises `BadSetting` for a family or folder that does not fit, `StartFailed` for one that cannot be read.
    """
    if loading.plane.degree > 1:
        check_axis(family(name), "tp", path="parallelism.model.tensor_parallel_degree")
    adapter: Adapter = _part(name, "adapter").load(model_path, loading)
    graphs = loading.graphs
    if graphs is not None and loading.plane.degree == 1 and isinstance(adapter, Capturable):
        adapter.use_graphs(graphs)
    if loading.prompt_bytes:
        pipeline = adapter.pipeline
        pipeline.encode_prompt = Remembered(
            pipeline.encode_prompt, budget_bytes=loading.prompt_bytes, never=(WARM_UP_PROMPT,)
        )
    if loading.compiled and isinstance(adapter, Capturable):
        adapter.compile_blocks()
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
