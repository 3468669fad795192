"""Loading a model in tensor-parallel planes: each rank reads its part of the weights, out of the mapped file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from accelerate import init_empty_weights
from diffusers import DiffusionPipeline, ModelMixin
from safetensors import safe_open
from torch import nn

from epe.errors import StartFailed
from epe.families import Family
from epe.models.checkpoint import check_folder, load_pipeline, readable
from epe.models.loading import Loading
from epe.parallel import Cut, DividedLayers, TensorSharding

Pipeline = TypeVar("Pipeline", bound=DiffusionPipeline)

_WEIGHTS = "diffusion_pytorch_model.safetensors"


def load_in_planes(
    pipeline_type: type[Pipeline],
    model_path: Path,
    *,
    family: Family,
    loading: Loading,
    others: Mapping[str, torch.dtype] = MappingProxyType({}),
    model_type: type[ModelMixin],
    layers: tuple[DividedLayers, ...],
) -> tuple[Pipeline, TensorSharding]:
    """The family's pipeline with a transformer in planes, and the means to run that on a lane.

    `others` are components in another type than the rest. Encoding and decoding are work of the first plane: the
    others have neither text encoder nor VAE. Raises what `load_pipeline` raises, and `StartFailed` for heads that
    the planes cannot share.
    """
    load = partial(load_pipeline, pipeline_type, model_path, family=family, loading=loading, others=others)
    plane = loading.plane
    if plane.degree == 1:
        pipeline = load()
        return pipeline, TensorSharding(pipeline.transformer, layers)
    check_folder(model_path, family=family)
    with readable(model_path, family=family):
        folder = model_path / "transformer"
        with init_empty_weights():
            transformer = model_type.from_config(model_type.load_config(folder))
        sharding = TensorSharding(transformer, layers, plane=plane)
        _fill(transformer, folder, sharding.cuts, device=loading.device, dtype=loading.weights_dtype)
    absent = () if plane.index == 0 else ("tokenizer", "text_encoder", "vae")
    return load(parts={"transformer": transformer.eval(), **dict.fromkeys(absent)}), sharding


def _fill(
    model: ModelMixin, folder: Path, cuts: Mapping[str, Cut], *, device: torch.device, dtype: torch.dtype
) -> None:
    """Give every weight of the model its values, one after the other, so that the host holds no second copy."""
    weights = dict(model.named_parameters())
    kept = set(model._keep_in_fp32_modules or ())
    for file, names in _files(folder, set(weights)).items():
        with safe_open(file, framework="pt", device="cpu") as stored:
            for name in names:
                wanted = torch.float32 if kept & set(name.split(".")) else dtype
                value = _part(stored.get_slice(name), cuts.get(name))
                if value.shape != weights[name].shape:
                    raise StartFailed(
                        f"{name} in {file} is {tuple(value.shape)}; the model wants {tuple(weights[name].shape)}"
                    )
                _set(model, name, value.to(device, wanted))
    model.to(device)  # tables that no file holds


def _part(stored: Any, cut: Cut | None) -> torch.Tensor:
    """A view of the mapped file, whose memory the ranks of a host share."""
    if cut is None:
        return stored[...]
    part = slice(cut.start, cut.end)
    return stored[part] if cut.dim == 0 else stored[:, part]


def _set(model: nn.Module, name: str, value: torch.Tensor) -> None:
    path, _, weight = name.rpartition(".")
    setattr(model.get_submodule(path), weight, nn.Parameter(value, requires_grad=False))


def _files(folder: Path, names: set[str]) -> dict[Path, list[str]]:
    """Where each weight is stored, by file."""
    found: dict[Path, list[str]] = {}
    for file, held in _held(folder):
        found[file] = [name for name in held if name in names]
    if missing := names.difference(*found.values()):
        others = f" and {len(missing) - 1} other weights" if len(missing) > 1 else ""
        raise StartFailed(f"{folder} lacks {min(missing)}{others}")
    return found


def _held(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    index = folder / f"{_WEIGHTS}.index.json"
    files = (
        sorted(set(json.loads(index.read_bytes())["weight_map"].values())) if index.exists() else [_WEIGHTS]
    )
    for name in files:
        with safe_open(folder / name, framework="pt", device="cpu") as stored:
            yield folder / name, list(stored.keys())
