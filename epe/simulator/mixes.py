"""Which sizes are asked for: shares over the classes of a cost set, smallest work first."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from epe.errors import BadSetting
from epe.geometry import split_rows
from epe.simulator.arrivals import single_s
from epe.simulator.costs import CostSet, Size

FEW_STEPS = 4


class Mix(Struct, frozen=True, kw_only=True):
    """Classes by ascending work on one rank (`single_s`), each with its share of the requests."""

    sizes: tuple[Size, ...]
    shares: tuple[float, ...]
    single_s: tuple[float, ...]

    def draw(self, source: Random) -> int:
        """The index of a class."""
        return source.choices(range(len(self.sizes)), self.shares)[0]

    @property
    def mean_s(self) -> float:
        return sum(share * s for share, s in zip(self.shares, self.single_s, strict=True)) / sum(self.shares)

    @property
    def reversed(self) -> Mix:
        """What was rare is frequent."""
        return replace(self, shares=self.shares[::-1])

    @property
    def groups(self) -> tuple[int, ...]:
        """Small, medium or large (0, 1, 2) for each class: thirds of the classes, the smaller ones first."""
        counts = split_rows(len(self.sizes), 3)
        return tuple(group for group, count in enumerate(counts) for _ in range(count))


def mix_of(name: str, cost_set: CostSet, *, num_steps: int | None = None) -> Mix:
    """A mix by name, or `CLASS=SHARE,CLASS=SHARE`; `num_steps` replaces that of the classes."""
    sizes = cost_set.sizes
    if name == "few-step" or num_steps is not None:
        sizes = tuple(replace(size, num_steps=num_steps or FEW_STEPS) for size in sizes)
    everything = _by_work(sizes, cost_set)
    if "=" in name:
        return _weighted(everything, _explicit(name, everything))
    if name not in MIXES:
        raise BadSetting(
            f"mix {name!r} is not known; known are {', '.join(MIXES)}, or CLASS=SHARE,... with the classes "
            f"{', '.join(size.name for size in everything.sizes)}",
            path="--mix",
        )
    return _weighted(everything, MIXES[name][1](everything))


def _by_work(sizes: tuple[Size, ...], cost_set: CostSet) -> Mix:
    costs = cost_set.table([size.workload for size in sizes], world_size=1)
    work = {size: single_s(costs, size.workload, num_steps=size.num_steps) for size in sizes}
    order = sorted(sizes, key=lambda size: work[size])
    return Mix(sizes=tuple(order), shares=(1.0,) * len(order), single_s=tuple(work[size] for size in order))


def _weighted(everything: Mix, shares: list[float]) -> Mix:
    """Without the classes that nobody asks for."""
    kept = [index for index, share in enumerate(shares) if share > 0]
    total = sum(shares)
    if not kept:
        raise BadSetting("no class of this cost set is in the mix", path="--mix")
    return Mix(
        sizes=tuple(everything.sizes[index] for index in kept),
        shares=tuple(shares[index] / total for index in kept),
        single_s=tuple(everything.single_s[index] for index in kept),
    )


def _explicit(text: str, everything: Mix) -> list[float]:
    names = [size.name for size in everything.sizes]
    shares = [0.0] * len(names)
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            shares[names.index(name.strip())] = float(share)
        except ValueError:
            raise BadSetting(
                f"{part!r} is not CLASS=SHARE with one of the classes {', '.join(names)}", path="--mix"
            ) from None
    if min(shares) < 0 or not math.isfinite(sum(shares)):
        raise BadSetting("shares are positive numbers", path="--mix")
    return shares


def _small(mix: Mix) -> list[float]:
    counts = split_rows(len(mix.sizes), 3)
    return [(0.55, 0.35, 0.10)[group] / counts[group] for group in mix.groups]


def _large(mix: Mix) -> list[float]:
    tokens = [size.workload.tokens for size in mix.sizes]
    return [math.exp(count / max(tokens)) for count in tokens]


def _only(index: int) -> Callable[[Mix], list[float]]:
    def shares(mix: Mix) -> list[float]:
        wanted = index % len(mix.sizes)
        return [float(place == wanted) for place in range(len(mix.sizes))]

    return shares


def _video(mix: Mix) -> list[float]:
    return [float(size.makes == "video") for size in mix.sizes]


def _uniform(mix: Mix) -> list[float]:
    return [1.0] * len(mix.sizes)


# Name: what it is, and its shares over classes that are sorted by work.
MIXES: dict[str, tuple[str, Callable[[Mix], list[float]]]] = {
    "small": ("55 % small, 35 % medium, 10 % large", _small),
    "uniform": ("every class alike", _uniform),
    "large": ("in proportion to exp(tokens / most tokens), as in TetriServe", _large),
    "few-step": (f"every class alike, {FEW_STEPS} steps each", _uniform),
    "only-small": ("the smallest class alone", _only(0)),
    "only-large": ("the largest class alone", _only(-1)),
    "only-video": ("the videos alone", _video),
}
