"""What the control plane must know of each model family: data and pure functions, no torch.

`family(name)` gives one of the eight, `available_family(name)` one that works in this version;
`FAMILIES` is all of them in the order of the documentation.
"""

from __future__ import annotations

from difflib import get_close_matches

from epe.errors import BadSetting
from epe.families.family import (
    MAX_PLANES,
    MAX_WIDTH,
    AttentionKind,
    AttentionModules,
    Axis,
    Defaults,
    Family,
    FrameRule,
)
from epe.families.pictures import FLUX1, FLUX2_KLEIN, HUNYUAN_IMAGE3, LLADA_IMAGE, QWEN_IMAGE, ZIMAGE
from epe.families.videos import MINIMAX_H3, WAN

__all__ = [
    "FAMILIES",
    "MAX_PLANES",
    "MAX_WIDTH",
    "AttentionKind",
    "AttentionModules",
    "Axis",
    "Defaults",
    "Family",
    "FrameRule",
    "available_family",
    "check_axis",
    "family",
]

FAMILIES: dict[str, Family] = {
    each.name: each
    for each in (ZIMAGE, FLUX1, FLUX2_KLEIN, QWEN_IMAGE, WAN, MINIMAX_H3, LLADA_IMAGE, HUNYUAN_IMAGE3)
}


def family(name: str, *, path: str = "") -> Family:
    """The family called `name`; raises `BadSetting` (at `path`) for a name that is none of the eight."""
    if name in FAMILIES:
        return FAMILIES[name]
    near = get_close_matches(name, FAMILIES, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise BadSetting(f"model family {name!r} is not known; {hint}known are {', '.join(FAMILIES)}", path=path)


def available_family(name: str, *, path: str = "") -> Family:
    """The family called `name`, if it works in this version; raises `BadSetting` otherwise."""
    found = family(name, path=path)
    if not found.available:
        ready = ", ".join(each.name for each in FAMILIES.values() if each.available)
        raise BadSetting(f"model family {name!r} is not yet available; available are {ready}", path=path)
    return found


def check_axis(family: Family, axis: Axis, *, path: str) -> None:
    """Raises `BadSetting` at `path` where the family does not have the axis."""
    if not family.owns(axis):
        owners = (
            each.name if axis in each.axes else f"{each.name} (not yet)"
            for each in FAMILIES.values()
            if each.owns(axis)
        )
        raise BadSetting(
            f"{family.name} has no such axis; families that have it are {', '.join(owners)}", path=path
        )
