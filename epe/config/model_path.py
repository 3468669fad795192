"""Is there a checkpoint of this family in a folder? Looks at its index alone, reads no weights."""

from __future__ import annotations

import json
from pathlib import Path

from epe.config.demo import model_folder
from epe.errors import BadSetting
from epe.families import Family

INDEX = "model_index.json"


def check_model_path(model_path: str, family: Family, *, path: str) -> None:
    """Raises `BadSetting` at `path` where the folder holds no checkpoint of `family`."""
    folder = model_folder(model_path)
    if not folder.exists():
        raise BadSetting(f"there is no folder {model_path}", path=path)
    if not folder.is_dir():
        raise BadSetting(f"{model_path} is a file; give the folder that holds {INDEX}", path=path)
    pipeline = _pipeline_of(folder / INDEX, path=path)
    if pipeline != family.pipeline:
        raise BadSetting(
            f"{model_path} holds a {pipeline}, but {family.name} needs a {family.pipeline}", path=path
        )


def _pipeline_of(index: Path, *, path: str) -> str:
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadSetting(
            f"{index.parent} holds no {INDEX}; give the folder of a whole checkpoint in diffusers' format",
            path=path,
        ) from None
    except (OSError, ValueError) as error:
        raise BadSetting(f"{index} cannot be read: {error}", path=path) from error
    name = content.get("_class_name") if isinstance(content, dict) else None
    if not isinstance(name, str):
        raise BadSetting(f"{index} does not name a pipeline (_class_name)", path=path)
    return name
