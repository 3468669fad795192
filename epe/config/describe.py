"""A stage as YAML: what is in force, defaults included. Loading it again gives the same stage."""

from __future__ import annotations

import msgspec
import yaml

from epe.config.checks import WITHOUT_EFFECT
from epe.config.keys import AXIS_OF_KEY, VIDEO_KEYS, Tree, section
from epe.config.stage import DERIVED_FIELDS, Stage


def describe(stage: Stage) -> str:
    """The whole stage file without the keys that have no effect; those that were given follow as comments."""
    tree: Tree = msgspec.to_builtins(stage)
    for path in (*DERIVED_FIELDS, *WITHOUT_EFFECT):
        _drop(tree, path)
    if stage.family.makes == "picture":
        for path in VIDEO_KEYS:
            _drop(tree, path)
    for key, axis in AXIS_OF_KEY.items():
        if not stage.family.owns(axis):
            _drop(tree, f"parallelism.model.{key}")
    sizes = stage.parallelism.scheduler.warmup_resolutions
    scheduler = section(tree, "parallelism.scheduler")
    scheduler["warmup_resolutions"] = ["x".join(map(str, size)) for size in sizes]
    comments = (f"# without effect: {note}\n" for note in stage.unused)
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100) + "".join(comments)


def _drop(tree: Tree, path: str) -> None:
    place, _, key = path.rpartition(".")
    (section(tree, place) if place else tree).pop(key, None)
