"""Ranks that are taken out by hand, and the restart of all of them, one after the other."""

from __future__ import annotations

from collections import deque

from epe.actors.custody import Held, held_on
from epe.actors.doors import Doors
from epe.actors.leasing import Leasing
from epe.messages import Action, Failure, FailureKind, RestartStatus
from epe.telemetry.log import get_logger

log = get_logger("planner")


class Upkeep:
    """Mutable, owned by the planner, which calls `settle` after every event. A restart goes on while ranks are lost by
    accident: the next one waits until all are back."""

    def __init__(self, leasing: Leasing, *, doors: Doors) -> None:
        self.leasing = leasing
        self.ledger = leasing.ledger
        self.roster = leasing.roster
        self.doors = doors
        # What the ranks shall come back with; None while there is no restart.
        self._weights: str | None = None
        self._rank: int | None = None
        self._waiting: deque[int] = deque()

    @property
    def status(self) -> RestartStatus | None:
        """How far the restart has come; None if there is none."""
        if self._weights is None:
            return None
        back = next(iter(self.roster.gone), None)
        return RestartStatus(rank=back if self._rank is None else self._rank, waiting=tuple(self._waiting))

    def operate(self, action: Action, rank: int) -> Failure | None:
        """Do what an operator asks for, or say why not. What is so already stays as it is."""
        if problem := self._problem(rank):
            return Failure(kind=FailureKind.CONFLICT, message=f"{action}: {problem}")
        absence = self.roster.away.get(rank)
        state = "" if absence is None else absence.state
        match action:
            case "readmit":
                self.roster.readmit(rank)
            case "cordon" if state != "cordoned":
                self.roster.take_out(rank, state="cordoned", reason="it was cordoned by hand")
            case "drain" if state not in ("draining", "drained"):
                self.roster.take_out(rank, state="draining")
        log.info("rank.was_operated", rank=rank, action=action)
        return None

    def restart(self, weights: str) -> Failure | None:
        """Begin to restart all ranks, or say why not."""
        if problem := self._problem() or self._absences():
            return Failure(kind=FailureKind.CONFLICT, message=f"restart: {problem}")
        self._weights = weights
        # A column of planes works only while all of its ranks have the same weights.
        columns = range(self.ledger.world_size // self.ledger.num_planes)
        self._waiting = deque(rank for column in columns for rank in sorted(self.ledger.column(column)))
        log.info("restart.began", ranks=list(self._waiting))
        return None

    def lost(self, rank: int) -> None:
        """A rank is gone, by accident or because it was told to be: what comes back is new."""
        if rank == self._rank:
            self._rank = self.leasing.closing = None

    def settle(self) -> int | None:
        """See who is drained by now; the rank that shall make room for its next process, if one shall."""
        for rank in self.roster.leaving:
            held = self._held_on(rank)
            if held.is_nothing and self.roster.away[rank].state == "draining":
                log.info("rank.was_drained", rank=rank)
            self.roster.take_out(rank, state="drained" if held.is_nothing else "draining", reason=str(held))
        return None if self._weights is None else self._next()

    def stall(self) -> str:
        """Why no request gets on, if none does for want of ranks."""
        away = self.roster.away
        trajectories = self.leasing.trajectories
        if not away or not trajectories or self.ledger.whole_columns(self.roster.available):
            return ""
        states = ", ".join(f"rank {rank} is {absence.state}" for rank, absence in sorted(away.items()))
        return f"{len(trajectories)} requests wait for ranks: {states}"

    def _next(self) -> int | None:
        if self.doors.phase != "running":
            self._end("restart.was_given_up")
        elif not self.roster.gone:
            if self._rank is None and self._waiting:
                self._rank = self._waiting.popleft()
            if self._rank is not None:
                return self._rank if self._makes_room(self._rank) else None
            self._end("restart.ended")
        return None

    def _makes_room(self, rank: int) -> bool:
        """Whether a rank may go now; if not, bring it closer to that."""
        if self._has_to_finish(rank):
            self.leasing.closing = self.roster.weights_of(rank)
            return False
        held = self._held_on(rank)
        if held.is_nothing or (held.is_final and not self._has_others(rank)):
            return True
        self.roster.take_out(rank, state="draining", reason=str(held))
        return False

    def _has_to_finish(self, rank: int) -> bool:
        """Whether what was begun with its weights could not be ended without this rank, but can be with it."""
        weights = self.roster.weights_of(rank)
        if weights == self._weights or self._has_others(rank):
            return False
        kind = self._kind(rank)
        begun = (t.view for t in self.leasing.trajectories.values() if t.weights == weights)
        return bool(self.ledger.whole_columns(kind)) and any(
            self.leasing.has_room(view, kind) for view in begun
        )

    def _end(self, event: str) -> None:
        log.info(event, weights=self._weights)
        self._weights = self._rank = self.leasing.closing = None
        self._waiting.clear()

    def _kind(self, rank: int) -> frozenset[int]:
        """The ranks with its weights that may be given leases."""
        return dict(self.roster.by_weights()).get(self.roster.weights_of(rank) or "", frozenset())

    def _has_others(self, rank: int) -> bool:
        """Whether some lane without this rank can go on with what it has begun."""
        return bool(self.ledger.whole_columns(self._kind(rank) - {rank}))

    def _held_on(self, rank: int) -> Held:
        trajectories = self.leasing.trajectories.values()
        return held_on(
            rank, ledger=self.ledger, trajectories=trajectories, elsewhere=self._kind(rank) - {rank}
        )

    def _problem(self, rank: int | None = None) -> str:
        """Why nothing can be done to the ranks now, or to this one."""
        if self.doors.phase != "running":
            return f"the service is {self.doors.phase}; wait until it is running"
        if self.status is not None:
            return (
                "the ranks are being restarted, one after the other; wait for the end of that (GET /v1/ranks)"
            )
        if rank is not None and self.roster.is_gone(rank):
            absence = self.roster.away[rank]
            return f"rank {rank} is {absence.state} ({absence.reason}); it comes back by itself"
        return ""

    def _absences(self) -> str:
        away = [f"rank {rank} is {absence.state}" for rank, absence in sorted(self.roster.away.items())]
        if away:
            return f"{', '.join(away)}; a restart begins when all ranks work: readmit them, or wait"
        return "" if self.leasing.settings.survives else "nobody starts the ranks of this world again"
