"""What is known of a model for FlexCache: published tables, or what `epe cache fit` has measured. Data alone, which
`products` calculates with: commands read flags before they load numpy.

A profile belongs to a checkpoint: a fitted one lies in its folder, published ones in this room.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from epe.errors import BadSetting
from epe.messages.caching import Above0, Coefficient, Positive, Share

FILE = "flexcache.json"
# The paper's, for its polynomials.
TEA_THRESHOLD = 0.2
_PUBLISHED = Path(__file__).parent / "profiles"


class MagTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long each step's velocity is, measured by that of the step before (the first: 1), and MagCache's values."""

    ratios: Annotated[tuple[Coefficient, ...], Meta(min_length=1)]
    threshold: Above0
    max_skip_steps: Positive
    retention_ratio: Share


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model; `source` says where the numbers come from. A published one is that of checkpoints whose transformer
    has these `settings`: of the families some have other models too.

    `sigmas` are the noise levels of the trajectories measured, after the last step too. `gram` has, row by row up to
    the diagonal, the mean over trajectories of the inner products of the velocities of every two steps, in parts of the
    squared length of the whole way from noise to picture. `tea` is the polynomial of the change of the velocity by that
    of the latents, highest power first, and `tea_threshold` what it sums up to before a step is computed. `gains` say
    how much of an error in the latents before each step, and after the last, is left at the end (none: all of each).
    """

    model: str
    family: str
    source: str
    settings: tuple[tuple[str, bool | int], ...] = ()
    sigmas: tuple[Coefficient, ...] = ()
    gram: tuple[tuple[Coefficient, ...], ...] = ()
    gains: tuple[Coefficient, ...] = ()
    mag: MagTable | None = None
    tea: Annotated[tuple[Coefficient, ...], Meta(max_length=5)] = ()
    tea_threshold: Above0 = TEA_THRESHOLD

    @property
    def num_steps(self) -> int:
        return len(self.gram)

    def mag_table(self, num_steps: int) -> MagTable | None:
        """MagCache's table for a number of steps: the published one, each step as the next one of its steps; else the
        lengths of the velocities measured."""
        if self.mag is not None:
            places = _nearest(len(self.mag.ratios), num_steps)
            return msgspec.structs.replace(self.mag, ratios=tuple(self.mag.ratios[place] for place in places))
        if not self.gram:
            return None

        from epe.cache.products import length_ratios

        ratios = length_ratios(self, num_steps)
        return MagTable(ratios=ratios, threshold=0.06, max_skip_steps=3, retention_ratio=0.2)


def _nearest(num_known: int, num_steps: int) -> list[int]:
    if num_steps == 1:
        return [num_known - 1]
    return [round(step * (num_known - 1) / (num_steps - 1)) for step in range(num_steps)]


@lru_cache(maxsize=64)
def find_profile(folder: Path, family: str) -> Profile | None:
    """The profile of a checkpoint: that in its folder, else the published one of its model. Raises `BadSetting` for one
    that cannot be read or is of another family."""
    if (file := folder / FILE).is_file():
        return read_profile(file, family)
    profile = published_profile(family)
    return profile if profile and _has_settings(folder / "transformer" / "config.json", profile) else None


def published_profile(family: str) -> Profile | None:
    """That of one model of a family."""
    file = _PUBLISHED / f"{family}.json"
    return read_profile(file, family) if file.is_file() else None


def _has_settings(config: Path, profile: Profile) -> bool:
    """What cannot be read is for the loading to say."""
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and all(found.get(name) == value for name, value in profile.settings)


def read_profile(file: Path, family: str) -> Profile:
    """Raises `BadSetting` for a file that is no profile of `family`."""
    try:
        profile = msgspec.json.decode(file.read_bytes(), type=Profile)
    except (OSError, msgspec.DecodeError) as error:
        raise BadSetting(f"{file} is no profile of FlexCache: {error}; fit it anew or remove it") from error
    if profile.family != family:
        raise BadSetting(f"{file} is a profile of family {profile.family}, not {family}")
    if problem := _problem(profile):
        raise BadSetting(f"{file} is no profile of FlexCache: {problem}; fit it anew or remove it")
    return profile


def _problem(profile: Profile) -> str | None:
    if any(len(row) != step + 1 for step, row in enumerate(profile.gram)):
        return "the rows of gram are not those of a triangle"
    if nothing := [step for step, row in enumerate(profile.gram) if row[-1] <= 0]:
        return f"gram gives the velocity of step {nothing[0]} no length"
    if profile.gram and (len(profile.sigmas) != profile.num_steps + 1 or profile.num_steps < 2):
        return f"gram has {profile.num_steps} steps, and sigmas {len(profile.sigmas)} levels (one more are needed)"
    if profile.gains and len(profile.gains) != len(profile.sigmas):
        return f"there are {len(profile.gains)} gains, and {len(profile.sigmas)} levels"
    if not all(math.isfinite(gain) and gain >= 0 for gain in profile.gains):
        return "gains are not 0 or more"
    falling = all(later < earlier for earlier, later in pairwise(profile.sigmas))
    return None if falling and all(map(math.isfinite, profile.sigmas)) else "sigmas do not fall"
