"""What every baseline is told; a benchmark commits the settings that it used."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from epe.errors import BadSetting
from epe.planning.costs import CostTable, Workload
from epe.planning.draft import Draft
from epe.planning.speeds import Speed, Speeds
from epe.planning.view import View


class BaselineSettings(Struct, frozen=True, kw_only=True):
    """One struct for all baselines; each reads what it needs.

    `widths` are the lane widths that the cost table knows. `tuned` holds the fixed width of each class, by the
    name that `class_of` gives it, found on other seeds; a class that is not named gets the widest width of at
    least `min_efficiency`. A lease has as many steps as fit into `pulse_s`, at least `pulse_steps`; a round lasts
    `round_steps` median steps; `max_layouts` bounds the search of the pulses.

    With `hold` a request that lacks ranks keeps idle ones until the others are free. With `late_last` requests that
    can no longer be in time stand behind all others, where the order is by deadline. With `ahead` ranks whose lease
    is about to end are given away too, as EPE's own policies do it.
    """

    world_size: int
    widths: tuple[int, ...]
    tuned: dict[str, int] = {}
    min_efficiency: float = 0.5
    pulse_s: float = 0.05
    pulse_steps: int = 1
    round_steps: int = 5
    starvation_s: float = 30.0
    hold: bool = True
    late_last: bool = False
    ahead: bool = True
    max_layouts: int = 256

    def __post_init__(self) -> None:
        wrong = [each for each in (*self.widths, *self.tuned.values()) if not 1 <= each <= self.world_size]
        if not self.widths or wrong:
            raise BadSetting(
                f"lane widths {wrong or list(self.widths)} are not between 1 and {self.world_size}"
            )

    def draft(self, view: View) -> Draft:
        """An empty plan on the ranks of a view that may be given away."""
        widths = tuple(sorted({*self.widths, *self.tuned.values()}))
        speeds = _speeds(view.costs, view.costs.edition, widths, len(view.ranks))
        return Draft(view, speeds, pulse_s=self.pulse_s, pulse_steps=self.pulse_steps, ahead=self.ahead)

    def fixed_width(self, workload: Workload, speed: Speed) -> int:
        """The width that requests of this class always have."""
        tuned = self.tuned.get(class_of(workload))
        if tuned is not None and tuned in speed.widths:
            return tuned
        return _efficient(speed, self.min_efficiency)


@lru_cache(maxsize=4)
def _speeds(costs: CostTable, edition: int, widths: tuple[int, ...], world: int) -> Speeds:
    """Kept as long as the table does not change: a run asks for them some ten thousand times."""
    return Speeds(costs, widths=widths, world=world)


@lru_cache(maxsize=256)
def _efficient(speed: Speed, min_efficiency: float) -> int:
    """The widest width of a speed that is efficient enough; speeds are kept, so is this."""
    return max(width for width in speed.ladder if speed.efficiency(width) >= min_efficiency)


def class_of(workload: Workload) -> str:
    """The name of a request's class in `tuned`: its model, if the world has several, and its tokens."""
    return f"{workload.model}/{workload.tokens}" if workload.model else str(workload.tokens)
