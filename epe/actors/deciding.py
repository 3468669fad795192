"""Whose plan counts: that of the stage file's policy, and of who stands in where a policy fails. No fault of a policy,
the default one included, ends the planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from epe.messages import PolicyStatus
from epe.planning.batching import with_partners
from epe.planning.calibration import Pinned
from epe.planning.faults import fault_among
from epe.planning.last_resort import LastResort
from epe.planning.view import MAX_LEASES, Assignment, Policy, TrajectoryView, View
from epe.telemetry.log import get_logger

log = get_logger("planner")


class Deciding:
    """Mutable, owned by the planner's books.

    A policy that raises, breaks a rule or lets all ranks idle is replaced by `fallback` for good. Where that one fails
    too, the last resort makes this one plan. In a round of the warm-up its own policy is asked first.
    """

    def __init__(self, policy: Policy, *, fallback: Policy, widths: tuple[int, ...], max_batch: int) -> None:
        self.policy = policy
        self.fallback = fallback
        self.last_resort = LastResort(widths=widths)
        self.max_batch = max_batch
        self.round: Pinned | None = None
        self._fault = ""
        self._num_faults: Counter[str] = Counter()

    @property
    def status(self) -> PolicyStatus:
        """Who decides, and what was wrong the last time that somebody had to stand in."""
        return PolicyStatus(name=type(self.policy).__name__, fault=self._fault)

    def plan(self, view: View, *, known: Mapping[str, TrajectoryView]) -> tuple[Assignment, ...]:
        """Assignments that keep the rules; none, and that said, if not even the last resort knows any. `known` are
        the trajectories of the view by their ids."""
        asked: list[Policy] = []
        while (policy := self._next(asked)) is not None:
            asked.append(policy)
            plan, fault = self._ask(policy, view, known)
            if fault is None:
                return plan
            self._failed(policy, fault)
        return ()

    def _next(self, asked: list[Policy]) -> Policy | None:
        in_turn = (self.round, self.policy, self.fallback, self.last_resort)
        untried = (each for each in in_turn if each is not None and not any(each is other for other in asked))
        return next(untried, None)

    def _ask(
        self, policy: Policy, view: View, known: Mapping[str, TrajectoryView]
    ) -> tuple[tuple[Assignment, ...], str | None]:
        """Its plan, and what is wrong with it."""
        try:
            plan = policy.plan(view)
            fault = fault_among(known, plan, open_ranks=view.open_ranks)
            if fault is not None or policy is self.round:
                return plan, fault
            if policy is not self.last_resort:
                plan = with_partners(view, plan, max_batch=self.max_batch)
            return plan, _idleness_of(view, plan)
        except Exception as error:  # a user's policy may raise anything
            return (), f"it raised {type(error).__name__}: {error}"

    def _failed(self, policy: Policy, fault: str) -> None:
        """Somebody else is asked: from now on instead of the stage file's policy, else for this plan."""
        name = type(policy).__name__
        self._fault = f"{name}: {fault}"
        self._num_faults[name] += 1
        # The 1st, 2nd, 4th, 8th, ...: one that fails at every event must not become a flood of lines.
        if (count := self._num_faults[name]) & (count - 1) == 0:
            log.error("policy.replaced", policy=name, fault=fault, num_faults=count)
        if policy is self.round:
            self.round = None
        elif policy is self.policy:
            self.policy = self.fallback


def _idleness_of(view: View, plan: tuple[Assignment, ...]) -> str | None:
    """With no lease anywhere nothing will happen, so that nobody would ask again."""
    if plan or any(rank.num_leases for rank in view.ranks):
        return None
    waits = any(trajectory.num_leases < MAX_LEASES for trajectory in view.trajectories)
    return "it gave no lease while all ranks idle and requests wait" if waits else None
