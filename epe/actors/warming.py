"""From ranks that are there to costs that are known: what an earlier service has kept, and what is still to measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from epe.actors.leasing import Leasing
from epe.messages import CostsStatus, RankReady, Stage
from epe.planning.calibration import Program, Round
from epe.planning.cost_set import CostSet, cost_set_of, restore


class Warming:
    """Mutable, owned by the planner. `program` is None where nothing is measured before the doors open."""

    def __init__(self, program: Program | None, *, leasing: Leasing) -> None:
        self.program = program
        self.leasing = leasing
        self.costs = leasing.costs
        self.fingerprint = ""
        self.origin = "guessed"
        self._use_kernels = False
        self._rounds: Iterator[Round] | None = None
        self._is_done = False

    def met(self, ready: Mapping[int, RankReady]) -> None:
        """All ranks are there; `fingerprint` names from here on all that the costs of this world depend on."""
        self.leasing.learning.met(list(ready.values()))
        kinds = sorted({each.fingerprint for each in ready.values()})
        self.fingerprint = " + ".join((f"{len(ready)} ranks", *kinds))
        self._use_kernels = any(each.device != "cpu" for each in ready.values())

    def begin(self, kept: CostSet | None) -> bool:
        """Take what was kept, and see what it leaves to measure; False if that was done already."""
        if self._rounds is not None:
            return False
        if kept is not None:
            restore(self.costs, kept)
            self.origin = "kept"
        rounds = self.program.rounds(self.costs, use_kernels=self._use_kernels) if self.program else iter(())
        self._rounds = rounds
        return True

    def next_round(self, *, now_s: float) -> bool:
        """Admit the requests of the next round; False when all are drawn, and the costs are settled."""
        step = None if self._rounds is None else next(self._rounds, None)
        self.leasing.begin_round(step)
        if step is None:
            self.costs.settle()
            self._is_done = True
            return False
        if step.measures == "tasks":
            self.origin = "measured"
        for request in step.requests:
            self.leasing.admit(request, now_s=now_s, for_client=False)
        return True

    def costs_to_keep(self) -> CostSet | None:
        """What was measured, if anything was since this was last asked for; None before the end of the warm-up."""
        learning = self.leasing.learning
        if self.program is None or not self._is_done or not learning.is_new:
            return None
        learning.is_new = False
        return cost_set_of(
            self.costs,
            name=self.program.family.name,
            sizes=self.program.shown_sizes,
            fingerprint=self.fingerprint,
        )

    @property
    def status(self) -> CostsStatus:
        """For people."""
        least, most = self.costs.reach(Stage.DENOISE)
        num_tasks = len(self.costs.measured)
        return CostsStatus(origin=self.origin, num_tasks=num_tasks, least_tokens=least, most_tokens=most)
