"""What the control plane must know of each model family: data and pure functions, no torch.

`family(name)` gives one of the eight; `FAMILIES` is all of them in the order of the documentation.
"""

from __future__ import annotations

from epe.errors import BadSetting
from epe.families.family import Defaults, Family

__all__ = ["FAMILIES", "Defaults", "Family", "family"]

FAMILIES: dict[str, Family] = {
    "zimage": Family(
        name="zimage",
        title="Z-Image",
        makes="picture",
        pipeline="ZImagePipeline",
        available=True,
        axes=("cfg", "cp"),
        side_multiple=16,
        patch=16,
        defaults=Defaults(height=1024, width=1024, num_steps=50, guidance_scale=5.0, seed=7),
    ),
}


def family(name: str) -> Family:
    """The family called `name`; raises `BadSetting` for a name that is none of the eight."""
    if name not in FAMILIES:
        raise BadSetting(f"model family {name!r} is not known; known are {', '.join(FAMILIES)}")
    return FAMILIES[name]
