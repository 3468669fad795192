"""Who is compared: our planner, and each other scheduler with a grid over its own settings, equally many tries each.

`BaselineSettings` says what a setting means. What the tries found is in `scheduling_tuned.json`.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import msgspec
from msgspec import Struct

from epe.planning.view import Policy
from epe.simulator.baselines import BASELINES, BaselineSettings
from epe.simulator.policies import policy_of

TUNED = Path(__file__).with_name("scheduling_tuned.json")
NUM_TRIES = 6  # the length of every grid

Settings = dict[str, bool | int | float]


class Entrant(Struct, frozen=True, kw_only=True):
    """A scheduler with its settings. `name` is the page's, `policy` that of `epe simulate --list`."""

    name: str
    policy: str
    settings: Settings = {}
    clairvoyant: bool = False

    def make(self, *, widths: tuple[int, ...], world_size: int) -> Policy:
        """A fresh policy for one run."""
        if self.policy not in BASELINES:
            return policy_of(self.policy, widths=widths, world_size=world_size)
        wanted = {"world_size": world_size, "widths": widths, **self.settings}
        return BASELINES[self.policy](msgspec.convert(wanted, BaselineSettings))


class Tuned(Struct, frozen=True, kw_only=True):
    """The best try of a baseline in a cell, with what it reached on the tuning seed."""

    cell: str
    entrant: Entrant
    slo_attainment: float
    weighted_goodput: float
    mean_latency_s: float

    @property
    def rank(self) -> tuple[float, float]:
        """What tuning looks for, smaller is better: requests and work in time, alike; then the mean latency, which
        tells apart what is in time altogether in a short run."""
        return -(self.slo_attainment + self.weighted_goodput) / 2, self.mean_latency_s


OURS = Entrant(name="elastic", policy="elastic")
STATIC_SP4 = Entrant(name="static-sp", policy="static-sp4")
CLAIRVOYANT = Entrant(name="clairvoyant", policy="elastic", clairvoyant=True)

_EFFICIENCIES = (0.5, 0.8, 0.9)
_MORE_EFFICIENCIES = (0.5, 0.7, 0.8, 0.87, 0.9, 0.97)
_LATE_LAST = (False, True)
_HELD_OR_COARSE: tuple[Settings, ...] = ({}, {"hold": False}, {"pulse_steps": 5})


def _grid(**choices: tuple[bool | int | float, ...]) -> tuple[Settings, ...]:
    return tuple(dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


# Width 1, 2, 4 or 8 for all is all that there is to static lanes.
GRIDS: dict[str, tuple[Settings, ...]] = {
    "rssp": _grid(min_efficiency=_MORE_EFFICIENCIES),
    "stage-static": _grid(late_last=_LATE_LAST, min_efficiency=_EFFICIENCIES),
    "edf-preempt": _grid(late_last=_LATE_LAST, min_efficiency=_EFFICIENCIES),
    "srtf-preempt": _grid(min_efficiency=_MORE_EFFICIENCIES),
    "ddit": _grid(ahead=(True, False), pulse_steps=(1, 2, 5)),
    "gfdit-edf": _grid(late_last=_LATE_LAST, pulse_steps=(1, 2, 5)),
    "tetriserve": tuple(
        {**late, **other} for late in _grid(late_last=_LATE_LAST) for other in _HELD_OR_COARSE
    ),
    "tetriserve-rounds": _grid(late_last=_LATE_LAST, round_steps=(2, 5, 10)),
    "genserve": tuple({**late, **other} for late in _grid(late_last=_LATE_LAST) for other in _HELD_OR_COARSE),
    "hesrpt": _grid(hold=(True, False), pulse_steps=(1, 2, 5)),
    "pulses": _grid(starvation_s=(30.0, 300.0), pulse_steps=(1, 2, 5)),
}


def tries(*, widths: tuple[int, ...]) -> list[Entrant]:
    """All settings that are tried in a cell whose lanes may have these widths."""
    static = [Entrant(name="static-sp", policy=f"static-sp{width}") for width in widths]
    return static + [
        Entrant(name=name, policy=name, settings=settings)
        for name, grid in GRIDS.items()
        for settings in grid
    ]


def read_tuned(path: Path = TUNED) -> dict[str, list[Tuned]]:
    """The tuned baselines of each cell, the best first."""
    cells: dict[str, list[Tuned]] = {}
    for tuned in msgspec.json.decode(path.read_bytes(), type=list[Tuned]):
        cells.setdefault(tuned.cell, []).append(tuned)
    return {cell: sorted(each, key=lambda tuned: tuned.rank) for cell, each in cells.items()}
