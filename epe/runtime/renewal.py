"""Whether ranks may be restarted, one after the other, into what their stage file and its weights are by now."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from epe.config.demo import model_folder
from epe.config.load import load_stage
from epe.config.stage import Stage
from epe.errors import BadSetting, Conflict
from epe.runtime.weights import shapes_digest, weights_digest

# Ranks with an old and a new value of any other key could not work side by side, or the leader would not know it.
MAY_CHANGE = frozenset({"factory_args.model_path"})
# Who wrote a configuration, and from where: no part of the model.
_ORIGIN = frozenset({"_diffusers_version", "_name_or_path", "transformers_version"})


def geometry_of(stage: Stage) -> str:
    """What has to stay as it is in the checkpoint of a stage: its configuration, and the shapes of its weights.
    Blocking; raises `BadSetting` for one that is damaged."""
    folder = model_folder(stage.factory_args.model_path)
    digest = hashlib.sha256(shapes_digest(folder).encode())
    for path in sorted(folder.rglob("*config*.json")):
        settings = {key: value for key, value in _settings(path).items() if key not in _ORIGIN}
        digest.update(
            f"{path.relative_to(folder).as_posix()} {json.dumps(settings, sort_keys=True)}".encode()
        )
    return digest.hexdigest()


def _settings(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadSetting(f"{path} is no JSON object: {error}", path="factory_args.model_path") from None


def renewed(stage_path: str | Path, *, stage: Stage, geometry: str) -> tuple[Stage, str]:
    """The stage that ranks would find now, and the digest of its weights. Blocking; raises `Conflict` if it is another
    one than `stage`, but for where its weights are, or its checkpoint has another geometry."""
    try:
        new = load_stage(stage_path)
    except BadSetting as error:
        raise Conflict(f"restart: the stage file has become wrong: {error}") from error
    if changed := first_difference(stage, new):
        raise Conflict(
            f"restart: {changed}; ranks that are restarted one after the other may change "
            f"{' and '.join(sorted(MAY_CHANGE))} alone: for the rest start the service anew"
        )
    path = new.factory_args.model_path
    try:
        if geometry_of(new) != geometry:
            raise Conflict(
                f"restart: the checkpoint in {path} has another configuration, or weights of other names or shapes, "
                "than the one that is served; to serve it start the service anew"
            )
        return new, weights_digest(model_folder(path))
    except (OSError, BadSetting) as error:
        raise Conflict(f"restart: the checkpoint in {path} cannot be read: {error}") from error


def first_difference(old: Stage, new: Stage) -> str:
    """For example `parallelism.cp.world_size is 4 in force and 2 in the stage file`; empty if there is none."""
    before, after = _flat(old), _flat(new)
    for path in sorted(before.keys() | after.keys()):
        if path not in MAY_CHANGE and before.get(path) != after.get(path):
            return f"{path} is {before.get(path)!r} in force and {after.get(path)!r} in the stage file"
    return ""


def _flat(stage: Stage) -> dict[str, Any]:
    """Values by their dotted paths."""
    found: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict) and value:
            for key, each in value.items():
                walk(each, f"{path}.{key}" if path else key)
        else:
            found[path] = value

    walk(msgspec.to_builtins(stage), "")
    return found
