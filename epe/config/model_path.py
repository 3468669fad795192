"""Is there a checkpoint of this family in a folder, and does it fit? Looks at its settings alone, reads no weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    content = _content_of(folder / INDEX, path=path)
    pipeline = _pipeline_of(content, folder / INDEX, path=path)
    if pipeline != family.pipeline:
        raise BadSetting(
            f"{model_path} holds a {pipeline}, but {family.name} needs a {family.pipeline}", path=path
        )
    if missing := [name for name in _components_of(content) if not (folder / name).is_dir()]:
        raise BadSetting(f"{model_path} lacks {', '.join(missing)}, which its {INDEX} names", path=path)


def check_planes(num_planes: int, model_path: str, family: Family, *, path: str) -> None:
    """Raises `BadSetting` at `path` where the model has fewer heads than planes of tensor parallelism; what cannot
    be read is for the loading to say."""
    config = model_folder(model_path) / "transformer" / "config.json"
    try:
        num_heads = json.loads(config.read_text(encoding="utf-8"))[family.heads_key]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if num_planes > num_heads:
        raise BadSetting(
            f"{num_planes} planes cannot share the {num_heads} heads of this model; possible are 1 to {num_heads}",
            path=path,
        )


def _content_of(index: Path, *, path: str) -> object:
    try:
        return json.loads(index.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadSetting(
            f"{index.parent} holds no {INDEX}; give the folder of a whole checkpoint in diffusers' format",
            path=path,
        ) from None
    except (OSError, ValueError) as error:
        raise BadSetting(f"{index} cannot be read: {error}", path=path) from error


def _components_of(content: object) -> Iterator[str]:
    """A component is named with its library and class; [null, null] is one that the checkpoint does without."""
    for name, kind in content.items() if isinstance(content, dict) else ():
        match kind:
            case [str(), str()]:
                yield name


def _pipeline_of(content: object, index: Path, *, path: str) -> str:
    name = content.get("_class_name") if isinstance(content, dict) else None
    if not isinstance(name, str):
        raise BadSetting(f"{index} does not name a pipeline (_class_name)", path=path)
    return name
