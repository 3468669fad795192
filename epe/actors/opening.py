"""The way from ranks that load to open doors: what is known of the world, the warm-up, and what is kept of both."""

from __future__ import annotations

from epe.actors.core import Actor
from epe.actors.doors import Doors
from epe.actors.keeper import KEEPER, CostsLoaded, KeepCosts, LoadCosts
from epe.actors.roster import Roster
from epe.actors.timers import Keep
from epe.actors.warming import Warming
from epe.planning.cost_set import CostSet


class Opening:
    """Mutable, owned by the planner, in whose name it sends. With `keeps_costs` there is a keeper on this node."""

    # A slow disk must not hold up the start for longer than this: then all is measured.
    LOAD_WITHIN_S = 10.0
    KEEP_EVERY_S = 60.0

    def __init__(
        self, planner: Actor, *, doors: Doors, roster: Roster, warming: Warming, keeps_costs: bool
    ) -> None:
        self.planner = planner
        self.doors = doors
        self.roster = roster
        self.warming = warming
        self.keeps_costs = keeps_costs

    def rank_came(self) -> None:
        """Once the last one has loaded its model: what is known of a world like this one?"""
        if self.doors.phase != "loading" or not self.roster.is_complete:
            return
        self.doors.enter("warming")
        self.warming.met(self.roster.ready)
        if self.keeps_costs:
            self.planner.ref(KEEPER).tell(LoadCosts(fingerprint=self.warming.fingerprint))
            self.planner.after(self.LOAD_WITHIN_S, CostsLoaded(costs=None))
        else:
            self.costs_came(None)

    def costs_came(self, kept: CostSet | None) -> None:
        """The keeper has answered, or has not in time."""
        if self.doors.phase == "warming" and self.warming.begin(kept):
            self.draw_round()

    def draw_round(self) -> None:
        """Draw the next round of the warm-up program, or open the doors."""
        if not self.warming.next_round(now_s=self.planner.now_s):
            self.doors.enter("running")
            self.keep()

    def keep(self) -> None:
        """Have written down what was learned, and again after a while."""
        if self.keeps_costs and self.doors.plans:
            if (costs := self.warming.costs_to_keep()) is not None:
                self.planner.ref(KEEPER).tell(KeepCosts(costs=costs))
            self.planner.after(self.KEEP_EVERY_S, Keep())

    def lateness(self, *, start_s: float) -> str | None:
        """What has not happened, now that the service should have started within `start_s`; None if all has."""
        limit = f"{start_s:g} s (service.start_s)"
        match self.doors.phase:
            case "loading":
                return f"ranks {self.roster.loading} have not loaded their model within {limit}"
            case "warming":
                return f"the warm-up has not ended within {limit}"
            case _:
                return None
