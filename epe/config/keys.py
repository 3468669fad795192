"""Which keys a stage file may have: unknown, old, and other families' keys are refused with a hint."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import fields

from epe.config.stage import DERIVED_FIELDS, Stage
from epe.errors import BadSetting
from epe.families import Axis, Family, check_axis

Tree = dict[str, object]

OLD_KEYS = {
    "parallelism.sp": "parallelism.cp",
    "parallelism.tp": "parallelism.model.tensor_parallel_degree",
    "parallelism.chitu_pool": "parallelism.scheduler",
    "factory_args.attention_mode": "parallelism.cp.attention_mode",
    "factory_args.ulysses_degree": "parallelism.cp.ulysses_degree",
    "factory_args.cfg_parallel": "parallelism.model.cfg_parallel_degree",
    "factory_args.expert_parallel_degree": "parallelism.model.expert_parallel_degree",
    "factory_args.parallel_vae": "parallelism.vae.enabled",
    "factory_args.vae_parallel_degree": "parallelism.vae.degree",
    "factory_args.vae_parallel_halo": "parallelism.vae.halo",
}

_VIDEO = ("wan", "minimax-h3")
_H3 = ("minimax-h3",)

# Keys under `factory_args` that belong to families which are not there yet.
LATER_FACTORY_ARGS: dict[str, tuple[str, ...]] = {
    "system_prompt": ("hunyuan-image3",),
    "flow_shift": (*_VIDEO, "hunyuan-image3"),
    "audio_flow_shift": _H3,
    "attention_backend": _H3,
    "latent_t": _H3,
    "audio_t": _H3,
    "audio_channels": _H3,
    "text_length": _H3,
    "text_encoder": _H3,
    "tokenizer": _H3,
    "processor": _H3,
    "video_vae": _H3,
    "audio_vae": _H3,
    "enable_native_media": _H3,
    "qwen_num_layers": _H3,
    "default_duration_s": _H3,
    "default_fps": _H3,
    "default_output_type": _H3,
    "ffmpeg_path": _H3,
    "warmup_media_profiles": _H3,
    "warmup_burnin_steps": _H3,
    "cost_profile_path": _H3,
}

# Keys that families which draw pictures have no use for.
VIDEO_KEYS = ("video_codec", "factory_args.num_frames")

# Keys that mean the same as another one.
ALIASES = {"parallelism.scheduler.schedule_strategy": "parallelism.scheduler.policy"}

AXIS_OF_KEY: dict[str, Axis] = {
    "cfg_parallel_degree": "cfg",
    "tensor_parallel_degree": "tp",
    "expert_parallel_degree": "ep",
}


def check_keys(tree: Tree) -> None:
    """Refuse what is no key of the stage file; says where an old key has gone."""
    _check_old(tree)
    _check_level(tree, Stage, path="", whole=Stage)


def check_family_keys(tree: Tree, family: Family) -> None:
    """Refuse the keys of axes and arguments that this family does not have."""
    for key in section(tree, "parallelism.model"):
        check_axis(family, AXIS_OF_KEY[key], path=f"parallelism.model.{key}")
    for key in section(tree, "factory_args"):
        if key in LATER_FACTORY_ARGS:
            later = LATER_FACTORY_ARGS[key]
            use = "cannot use this key yet" if family.name in later else "does not use this key"
            raise BadSetting(
                f"{family.name} {use}; it belongs to {', '.join(later)} and is not yet available",
                path=f"factory_args.{key}",
            )
    if family.makes == "picture":
        _refuse_video_keys(tree, family)


def _refuse_video_keys(tree: Tree, family: Family) -> None:
    for path in VIDEO_KEYS:
        place, _, key = path.rpartition(".")
        if key in (section(tree, place) if place else tree):
            raise BadSetting(
                f"{family.name} draws pictures; this key is for families that draw videos", path=path
            )


def resolve_aliases(tree: Tree) -> None:
    """Give aliased keys their first name, in place."""
    for old, new in ALIASES.items():
        place, _, key = old.rpartition(".")
        values, target = section(tree, place), new.rpartition(".")[2]
        if key in values and target in values:
            raise BadSetting(f"this is another name of {new}, which is given too; keep one of them", path=old)
        if key in values:
            values[target] = values.pop(key)


def section(tree: Tree, path: str) -> Tree:
    """The mapping at a dotted path; an empty one where there is none (its type is checked elsewhere)."""
    here: object = tree
    for key in path.split("."):
        here = here.get(key) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else {}


def known_keys(struct: type[Struct]) -> dict[str, type]:
    """The keys of one level with their types."""
    return {each.name: each.type for each in fields(struct) if each.name not in DERIVED_FIELDS}


def _check_old(tree: Tree) -> None:
    for old, new in OLD_KEYS.items():
        place, _, key = old.rpartition(".")
        if key in section(tree, place):
            raise BadSetting(f"this key is not used any more; write {new}", path=old)


def _check_level(tree: Tree, struct: type[Struct], *, path: str, whole: type[Struct]) -> None:
    known = known_keys(struct)
    for key, value in tree.items():
        here = f"{path}.{key}" if path else key
        if key not in known and here not in ALIASES and not _is_later(here):
            suggestion = _suggestion(key, tuple(known), places=tuple(_places_of(key, whole)))
            raise BadSetting(f"this key is not known; {suggestion}", path=here)
        inner = known.get(key)
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, Struct):
            _check_level(value, inner, path=here, whole=whole)


def _places_of(key: str, struct: type[Struct], *, above: str = "") -> Iterator[str]:
    """Every path at which a stage file may have a key of this name."""
    for name, kind in known_keys(struct).items():
        if name == key:
            yield f"{above}{name}"
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from _places_of(key, kind, above=f"{above}{name}.")


def _is_later(path: str) -> bool:
    place, _, key = path.rpartition(".")
    return place == "factory_args" and key in LATER_FACTORY_ARGS


def _suggestion(key: str, known: tuple[str, ...], *, places: tuple[str, ...]) -> str:
    """The nearest key of this level; else where one of that name stands; else all of this level."""
    if near := get_close_matches(key, known, n=1):
        return f"did you mean {near[0]}?"
    return f"write {' or '.join(places)}" if places else f"known here are {', '.join(known)}"
