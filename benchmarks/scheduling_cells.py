"""The cells in which schedulers are compared: named before anything was tuned, easy and tight, even and bursty,
one size and many. A name says costs, arrivals, mix, load and deadlines. Sweeps show how a gain changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from msgspec import Struct
from msgspec.structs import replace

from epe.simulator.costs import CostSet
from epe.simulator.published import PUBLISHED
from epe.simulator.workloads import Deadlines, WorkloadSpec

GFDIT = "gfdit"

# Many quick pictures, some that guide twice, few videos; and the other way round.
PICTURES = "flux2-klein=50,flux1-dev=30,qwen-image=15,wan=5"
VIDEOS = "flux2-klein=20,flux1-dev=20,qwen-image=20,wan=40"


class Cell(Struct, frozen=True, kw_only=True):
    """A workload on a machine. Seeds and the number of requests are the program's; `like` is the cell whose tuned
    baselines are used (itself, if empty)."""

    name: str
    costs: str
    world_size: int
    workload: WorkloadSpec
    like: str = ""

    @property
    def cost_set(self) -> CostSet:
        return PUBLISHED[self.costs]()

    def of(self, *, num_requests: int) -> WorkloadSpec:
        """The workload with so many requests."""
        return replace(self.workload, num_requests=num_requests)


def _deadlines(rule: float | str) -> Deadlines:
    """Multiples of the best latency alone, or GF-DiT's multiples of that on one rank."""
    return Deadlines(kind="gfdit") if isinstance(rule, str) else Deadlines(scale=rule)


def _cell(
    costs: str,
    arrivals: str,
    mix: str,
    load: float,
    rule: float | str,
    *,
    mix_name: str = "",
    like: str = "",
) -> Cell:
    machine, world_size = MACHINES[costs]
    limit = rule if isinstance(rule, str) else f"x{rule:g}"
    return Cell(
        name=f"{machine}-{arrivals}-{mix_name or mix}-{load:g}-{limit}",
        costs=costs,
        world_size=world_size,
        workload=WorkloadSpec(name=arrivals, mix=mix, load=load, deadlines=_deadlines(rule)),
        like=like,
    )


# The short name of a cost set, and the ranks of its machine.
MACHINES = {"qwen-h20": ("qwen", 4), "four-models": ("four", 8), "wan": ("wan", 8), "flux": ("flux", 8)}

CELLS: tuple[Cell, ...] = (
    _cell("qwen-h20", "poisson", "small", 0.6, 2.0),
    _cell("qwen-h20", "poisson", "small", 0.9, 1.5),
    _cell("qwen-h20", "poisson", "only-large", 0.7, 1.5),
    _cell("qwen-h20", "gamma3", "small", 0.6, 1.25),
    _cell("qwen-h20", "replay", "uniform", 0.8, 3.0),
    _cell("qwen-h20", "onoff", "uniform", 1.0, GFDIT),
    _cell("qwen-h20", "burst", "large", 0.7, 2.0),
    _cell("qwen-h20", "shift", "small", 1.2, 5.0),
    _cell("four-models", "poisson", PICTURES, 0.7, 2.0, mix_name="pictures"),
    _cell("four-models", "poisson", VIDEOS, 0.6, 1.25, mix_name="videos"),
    _cell("four-models", "gamma3", PICTURES, 0.5, 1.5, mix_name="pictures"),
    _cell("four-models", "gamma2", VIDEOS, 0.9, 5.0, mix_name="videos"),
    _cell("four-models", "replay", PICTURES, 0.8, 3.0, mix_name="pictures"),
    _cell("four-models", "burst", PICTURES, 0.6, 5.0, mix_name="pictures"),
    _cell("wan", "poisson", "small", 0.6, 1.25),
    _cell("wan", "poisson", "uniform", 0.9, GFDIT),
    _cell("wan", "poisson", "only-large", 0.6, 1.5),
    _cell("wan", "gamma3", "small", 0.5, 2.0),
    _cell("wan", "onoff", "large", 0.8, 5.0),
    _cell("wan", "shift", "uniform", 0.7, 3.0),
    _cell("flux", "poisson", "small", 0.4, 1.1),
    _cell("flux", "gamma2", "uniform", 0.7, 2.0),
    _cell("flux", "replay", "large", 0.9, 3.0),
    _cell("flux", "gamma3", "only-small", 0.8, 3.0),
)


def _shares(percent: int) -> Cell:
    """So many videos in a hundred requests, the rest pictures as in `PICTURES`."""
    left = (100 - percent) / 95
    mix = f"flux2-klein={50 * left:g},flux1-dev={30 * left:g},qwen-image={15 * left:g},wan={percent}"
    like = "four-poisson-pictures-0.7-x2"
    return _cell("four-models", "poisson", mix, 0.6, 1.5, mix_name=f"{percent}%video", like=like)


_SCHNELL = "schnell-1024=1,schnell-2048=1"
_QWEN, _FOUR = "qwen-poisson-small-0.6-x2", "four-poisson-pictures-0.7-x2"
_WAN, _FLUX = "wan-poisson-small-0.6-x1.25", "flux-gamma2-uniform-0.7-x2"

SWEEPS: dict[str, tuple[Cell, ...]] = {
    "one size": (
        _cell("qwen-h20", "poisson", "only-small", 0.8, 1.5, like=_QWEN),
        _cell("wan", "poisson", "only-small", 0.6, 1.5, like=_WAN),
        _cell("four-models", "poisson", "only-video", 0.6, 1.5, like=_FOUR),
    ),
    "share of videos": tuple(_shares(percent) for percent in (0, 5, 20, 50)),
    "few steps": (
        _cell("four-models", "poisson", "flux2-klein=1", 0.7, 1.5, mix_name="klein", like=_FOUR),
        _cell("flux", "poisson", _SCHNELL, 0.7, 1.5, mix_name="schnell", like=_FLUX),
        _cell("qwen-h20", "poisson", "few-step", 0.7, 1.5, like=_QWEN),
    ),
    "load": tuple(
        _cell("qwen-h20", "poisson", "uniform", load, 2.0, like=_QWEN)
        for load in (0.4, 0.6, 0.8, 0.9, 1.0, 1.2)
    ),
}

# The workload of GF-DiT's headline: Qwen-Image on 4 ranks in its classes, with its deadlines, at its loads.
GFDIT_CELLS = tuple(
    _cell("qwen-h20", arrivals, mix, load, GFDIT, like=_QWEN)
    for arrivals, mix in (("poisson", "small"), ("burst", "small"))
    for load in (0.7, 0.8, 0.9, 1.0, 1.2)
)

CELL_OF = {
    cell.name: cell for cell in (*CELLS, *(each for sweep in SWEEPS.values() for each in sweep), *GFDIT_CELLS)
}


def in_turn(cells: Sequence[Cell]) -> list[Cell]:
    """One of each machine, then the next of each: a program that is stopped has seen all of them."""
    by_machine = [[cell for cell in cells if cell.costs == costs] for costs in MACHINES]
    return [cell for row in zip_longest(*by_machine) for cell in row if cell is not None]
