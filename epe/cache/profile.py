"""What is known of a model for FlexCache: published tables, or what `epe cache fit` has measured. Data alone.

A profile belongs to a checkpoint: a fitted one lies in its folder, published ones in this room.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from epe.errors import BadSetting

FILE = "flexcache.json"
_PUBLISHED = Path(__file__).parent / "profiles"


class MagTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long each step's velocity is, measured by that of the step before (the first: 1), and MagCache's values."""

    ratios: tuple[float, ...]
    threshold: float
    max_skip_steps: int
    retention_ratio: float


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One model; `source` says where the numbers come from.

    `sigmas` are the noise levels of the trajectories measured, after the last step too. `gram` has, row by row up to
    the diagonal, the mean over trajectories of the inner products of the velocities of every two steps, in parts of the
    squared length of the whole way from noise to picture. `tea` is the polynomial of the change of the velocity by that
    of the latents, highest power first. `rho` says how far errors of different steps add up (0: not, 1: in full).
    """

    model: str
    family: str
    source: str
    sigmas: tuple[float, ...] = ()
    gram: tuple[tuple[float, ...], ...] = ()
    rho: float = 1.0
    mag: MagTable | None = None
    tea: tuple[float, ...] = ()

    @property
    def num_steps(self) -> int:
        return len(self.gram)

    @cached_property
    def products(self) -> np.ndarray:
        """(steps, steps): the whole of `gram`."""
        whole = np.zeros((self.num_steps, self.num_steps))
        for step, row in enumerate(self.gram):
            whole[step, : step + 1] = whole[: step + 1, step] = row
        return whole

    def at(self, num_steps: int) -> tuple[tuple[float, ...], np.ndarray]:
        """Noise levels and inner products of another number of steps, between whose like ones straight lines lead."""
        if num_steps == self.num_steps:
            return self.sigmas, self.products
        places = np.linspace(0, self.num_steps - 1, num_steps) if num_steps > 1 else np.zeros(1)
        below = np.minimum(places.astype(int), self.num_steps - 2)
        mix = np.zeros((num_steps, self.num_steps))
        mix[np.arange(num_steps), below] = below + 1 - places
        mix[np.arange(num_steps), below + 1] += places - below
        levels = np.linspace(0, self.num_steps, num_steps + 1)
        sigmas = np.interp(levels, np.arange(self.num_steps + 1), self.sigmas)
        return tuple(sigmas.tolist()), mix @ self.products @ mix.T

    def mag_table(self, num_steps: int) -> MagTable | None:
        """MagCache's table for a number of steps: the published one, each step as the next one of its steps; else the
        lengths of the velocities measured."""
        if self.mag is not None:
            places = _nearest(len(self.mag.ratios), num_steps)
            return msgspec.structs.replace(self.mag, ratios=tuple(self.mag.ratios[place] for place in places))
        if not self.gram:
            return None
        lengths = np.sqrt(np.diag(self.at(num_steps)[1]))
        ratios = (1.0, *(lengths[1:] / lengths[:-1]).tolist())
        return MagTable(ratios=ratios, threshold=0.06, max_skip_steps=3, retention_ratio=0.2)


def _nearest(num_known: int, num_steps: int) -> list[int]:
    if num_steps == 1:
        return [num_known - 1]
    return [round(step * (num_known - 1) / (num_steps - 1)) for step in range(num_steps)]


def gram_rows(products: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """The rows of a profile, with seven digits."""
    return tuple(
        tuple(float(f"{value:.7g}") for value in row[: step + 1])
        for step, row in enumerate(products.tolist())
    )


@lru_cache(maxsize=64)
def find_profile(folder: Path, family: str) -> Profile | None:
    """The profile of a checkpoint: that in its folder, else the published one of its family. Raises `BadSetting` for
    one that cannot be read or is of another family."""
    for file in (folder / FILE, _PUBLISHED / f"{family}.json"):
        if file.is_file():
            return read_profile(file, family)
    return None


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
    if profile.gram and (len(profile.sigmas) != profile.num_steps + 1 or profile.num_steps < 2):
        return f"gram has {profile.num_steps} steps, and sigmas {len(profile.sigmas)} levels (one more are needed)"
    falling = all(later < earlier for earlier, later in pairwise(profile.sigmas))
    return None if falling and all(map(math.isfinite, profile.sigmas)) else "sigmas do not fall"
