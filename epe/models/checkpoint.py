"""Checkpoint folders in diffusers' format: checked and loaded, or one clear sentence for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch
from diffusers import DiffusionPipeline
from diffusers.utils import logging as diffusers_logging
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from epe.errors import BadSetting, StartFailed
from epe.families import Family
from epe.models.loading import Loading

Pipeline = TypeVar("Pipeline", bound=DiffusionPipeline)


def load_pipeline(
    pipeline_type: type[Pipeline],
    model_path: Path,
    *,
    family: Family,
    loading: Loading,
    others: Mapping[str, torch.dtype] = MappingProxyType({}),
    parts: Mapping[str, object] = MappingProxyType({}),
) -> Pipeline:
    """The family's pipeline from a local folder, on the device. `others` are components in another type than the
    rest, by name; `parts` are components that are there already, or None for one that is not wanted.

    Raises `BadSetting` for a folder that is not there or holds another family, `StartFailed` for one that
    cannot be read.
    """
    check_folder(model_path, family=family)
    with readable(model_path, family=family), quiet_progress():
        pipeline = pipeline_type.from_pretrained(
            model_path,
            dtype={"default": loading.weights_dtype, **others},
            local_files_only=True,
            low_cpu_mem_usage=True,
            use_safetensors=True,  # never a pickle, which may execute whatever it likes
            **parts,
        )
        return pipeline.to(loading.device)


@contextmanager
def readable(model_path: Path, *, family: Family) -> Iterator[None]:
    """Raises `StartFailed` where the libraries fail to read a checkpoint meanwhile."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        raise StartFailed(
            f"the checkpoint {model_path} cannot be loaded as {family.pipeline}: {_first_line(error)}"
        ) from error


def check_folder(model_path: Path, *, family: Family) -> None:
    """Raises `BadSetting` unless `model_path` is a checkpoint folder of `family`."""
    index = model_path / "model_index.json"
    if not model_path.is_dir():
        raise BadSetting(
            f"model folder {model_path} does not exist; expected the folder of a {family.title} checkpoint"
        )
    if not index.is_file():
        raise BadSetting(
            f"{model_path} holds no model_index.json; expected the folder of a {family.title} checkpoint"
        )
    try:
        content = json.loads(index.read_bytes())
    except ValueError as error:
        raise BadSetting(f"{index} is not valid JSON: {error}") from error
    found = content.get("_class_name") if isinstance(content, dict) else None
    if found != family.pipeline:
        raise BadSetting(
            f"{index} names the pipeline {found}; family {family.name!r} needs {family.pipeline}"
        )


@contextmanager
def quiet_imports() -> Iterator[None]:
    """No warnings of transformers meanwhile: pipelines import what they may need, such as image encoders that read
    no prompt, and would tell every user what those lack."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


@contextmanager
def quiet_progress() -> Iterator[None]:
    """No progress bars of the libraries meanwhile: every rank loads, and one log tells about it."""
    active = [
        library for library in (diffusers_logging, transformers_logging) if library.is_progress_bar_enabled()
    ]
    for library in active:
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library in active:
            library.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
