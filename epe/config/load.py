"""The stage file to a `Stage`: the one place where a service's settings are checked and completed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

from epe.config import demo
from epe.config.checks import check_stage, notes
from epe.config.convert import to_struct
from epe.config.faults import check_consent
from epe.config.keys import Tree, check_family_keys, check_keys, resolve_aliases, section
from epe.config.sizes import resolve_sizes
from epe.config.stage import Stage
from epe.config.transport import Given, methods_of, resolve_transport
from epe.config.yaml_file import read_yaml
from epe.errors import BadSetting
from epe.families import MAX_WIDTH, Family, available_family

SECTIONS = (
    "parallelism",
    "parallelism.cp",
    "parallelism.vae",
    "parallelism.scheduler",
    "parallelism.model",
    "factory_args",
    "service",
)


def load_stage(path: str | Path, *, env: Mapping[str, str] = os.environ) -> Stage:
    """The stage that a file describes; raises `BadSetting` with the path of the first key that is wrong."""
    return build_stage(read_yaml(Path(path)), env=env)


def build_stage(settings: Mapping[str, object], *, env: Mapping[str, str] = os.environ) -> Stage:
    """The stage that plain values describe, nested as in the file; `settings` stay as they are."""
    tree: Tree = deepcopy(dict(settings))
    check_keys(tree)
    resolve_aliases(tree)
    family = _family_of(tree)
    check_family_keys(tree, family)
    check_consent(tree.get("faults"), env)
    unused = notes(tree)
    _resolve_transport(tree, env)
    _complete(tree, family)
    resolve_sizes(tree)
    stage = to_struct({**tree, "unused": unused}, Stage)
    check_stage(stage)
    return stage


def _family_of(tree: Tree) -> Family:
    factory = tree.get("factory")
    if factory is None:
        raise BadSetting("this key is missing; it names the model family, such as zimage", path="factory")
    if not isinstance(factory, str):
        raise BadSetting(f"expected the name of a model family, got {factory!r}", path="factory")
    return available_family(factory, path="factory")


def _resolve_transport(tree: Tree, env: Mapping[str, str]) -> None:
    """Put the method and transport in force into the tree: environment below the file."""
    cp = section(tree, "parallelism.cp")

    def given(key: str) -> Given:
        value = cp.get(key)
        return Given(f"parallelism.cp.{key}", None if value is None else str(value))

    transport = resolve_transport(
        methods=(given("attention_mode"),),
        agkv=given("agkv_transport"),
        ulysses=given("ulysses_transport"),
        env=env,
    )
    backends: Tree = {f"{method}_transport": transport.backend for method in methods_of(transport.method)}
    _fill(tree, "parallelism.cp", backends)


def _complete(tree: Tree, family: Family) -> None:
    """Fill in what follows from other keys. Values of a wrong type are left for the conversion to refuse."""
    is_demo = family.name == demo.FAMILY and section(tree, "factory_args").get("model_path") == demo.DEMO
    own = demo.DEFAULTS if is_demo else family.defaults
    for path in SECTIONS:
        _fill(tree, path, {})
    _fill(tree, "", {"process": tree.get("name")})
    _fill(tree, "parallelism.vae", {"enabled": family.parallel_vae})
    _fill(tree, "parallelism.model", {"cfg_parallel_degree": 2 if family.owns("cfg") else 1})
    _fill(
        tree,
        "factory_args",
        {
            "default_width": own.width,
            "default_height": own.height,
            "num_frames": own.num_frames,
            "guidance_scale": own.guidance_scale,
        },
    )
    _complete_degrees(tree, family)
    world = section(tree, "parallelism.cp").get("world_size")
    _fill(tree, "parallelism.scheduler", {"allowed_lane_widths": _divisors(world)})
    args = section(tree, "factory_args")
    size = [args.get("default_height"), args.get("default_width")]
    _fill(tree, "parallelism.scheduler", {"warmup_resolutions": [size]})


def _fill(tree: Tree, path: str, values: Tree) -> None:
    """Set what is not given in the section at `path`, which is made if there is none."""
    here = tree
    for key in filter(None, path.split(".")):
        inner = here.setdefault(key, {})
        if not isinstance(inner, dict):
            return
        here = inner
    for key, value in values.items():
        here.setdefault(key, value)


def _complete_degrees(tree: Tree, family: Family) -> None:
    """The width of a plane times the number of planes is the number of ranks: each follows from the other."""
    gpu, width = tree.get("gpu"), section(tree, "parallelism.cp").get("world_size")
    degree = section(tree, "parallelism.model").get("tensor_parallel_degree")
    num_ranks = len(gpu) if isinstance(gpu, list) and gpu else 1
    if degree is None and "tp" in family.axes and isinstance(width, int) and width > 0:
        degree = num_ranks // width if num_ranks % width == 0 else 1
    num_planes = degree if isinstance(degree, int) and degree > 0 else 1
    _fill(tree, "parallelism.model", {"tensor_parallel_degree": num_planes})
    _fill(tree, "parallelism.cp", {"world_size": max(1, num_ranks // num_planes)})


def _divisors(world: object) -> list[int]:
    if not isinstance(world, int) or isinstance(world, bool) or not 1 <= world <= 1024:
        return [1]
    return [width for width in range(1, min(world, MAX_WIDTH) + 1) if world % width == 0]
