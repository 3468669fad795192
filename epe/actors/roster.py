"""Which ranks may be given leases, and why the others may not. It knows nothing of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from epe.messages import DeviceUse, Lease, RankReady, RankStatus

Gone = Literal["lost", "restarting"]


class Absence(Struct, frozen=True, kw_only=True):
    """Why a rank gets no lease: it is gone, somebody took it out, or its work fails again and again."""

    state: Literal[Gone, "cordoned", "draining", "drained", "quarantined"]
    reason: str


class Roster:
    """Mutable, owned by the planner."""

    # Failures of its own in a row, each under another request, after which a rank is not trusted any more.
    MAX_FAILURES = 3

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.ready: dict[int, RankReady] = {}
        self.away: dict[int, Absence] = {}
        self._failed: dict[int, set[str]] = {}
        self._use: dict[int, DeviceUse] = {}

    @property
    def available(self) -> frozenset[int]:
        """The ranks that may be given leases."""
        return frozenset(self.ready) - frozenset(self.away)

    @property
    def is_complete(self) -> bool:
        """Whether every rank has loaded its model."""
        return len(self.ready) == self.world_size

    @property
    def unlike_widths(self) -> tuple[int, ...]:
        """Of lanes on which some rank gives other bits than alone, ascending."""
        return tuple(sorted({width for each in self.ready.values() for width in each.unlike_widths}))

    @property
    def loading(self) -> list[int]:
        """The ranks that have not loaded their model."""
        return [rank for rank in range(self.world_size) if rank not in self.ready]

    def is_gone(self, rank: int) -> bool:
        """Whether it has no process that works: it was lost, or told to make room for its next one."""
        return rank in self.gone

    @property
    def gone(self) -> list[int]:
        """The ranks that have no process that works."""
        return self.in_state("lost", "restarting")

    @property
    def leaving(self) -> list[int]:
        """The ranks that are, or are to be, of no use to anybody."""
        return self.in_state("draining", "drained")

    def in_state(self, *states: str) -> list[int]:
        """The ranks that are away for one of these reasons."""
        return [rank for rank, absence in sorted(self.away.items()) if absence.state in states]

    def weights_of(self, rank: int) -> str | None:
        """The weights that a rank has loaded; None of one that is gone."""
        ready = self.ready.get(rank)
        return None if ready is None else ready.weights

    @property
    def kinds(self) -> set[str]:
        """The weights that are loaded somewhere: one kind, but while they are renewed."""
        return {ready.weights for ready in self.ready.values()}

    def by_weights(self) -> Iterator[tuple[str, frozenset[int]]]:
        """The ranks that may be given leases, by what they have loaded."""
        for weights in sorted(self.kinds):
            yield weights, frozenset(rank for rank in self.available if self.weights_of(rank) == weights)

    def enter(self, message: RankReady) -> bool:
        """A rank is ready; True if it has been gone before."""
        returned = self.is_gone(message.rank)
        if returned:
            del self.away[message.rank]
        self.ready[message.rank] = message
        return returned

    def lose(self, rank: int, reason: str, *, state: Gone = "lost") -> None:
        """A rank is gone. One that was cordoned is no longer so when it comes back."""
        self.ready.pop(rank, None)
        self._failed.pop(rank, None)
        self._use.pop(rank, None)
        self.away[rank] = Absence(state=state, reason=reason)

    def take_out(
        self, rank: int, *, state: Literal["cordoned", "draining", "drained"], reason: str = ""
    ) -> None:
        """Give a rank that is there no more leases."""
        assert not self.is_gone(rank), f"rank {rank} is gone, and will come back"
        self.away[rank] = Absence(state=state, reason=reason)

    def readmit(self, rank: int) -> bool:
        """Give a rank leases again that was taken out or quarantined; False if it is gone, or was never away."""
        if rank not in self.away or self.is_gone(rank):
            return False
        del self.away[rank]
        self._failed.pop(rank, None)
        return True

    def worked(self, rank: int, use: DeviceUse | None = None) -> None:
        """A lease has run on this rank, and left its device with `use`."""
        self._failed.pop(rank, None)
        if use is not None:
            self._use[rank] = use

    def failed(self, rank: int, request_id: str, reason: str) -> bool:
        """A lease has failed by this rank's own error; True if it is quarantined for that.

        The last one is not: where every rank fails, the ranks are not what is broken.
        """
        failures = self._failed.setdefault(rank, set())
        failures.add(request_id)
        if len(failures) < self.MAX_FAILURES or self.available <= {rank}:
            return False
        self.away.setdefault(
            rank,
            Absence(
                state="quarantined", reason=f"the last {len(failures)} requests failed on it, with: {reason}"
            ),
        )
        return True

    def statuses(self, at_work: dict[int, Lease]) -> tuple[RankStatus, ...]:
        """Every rank, for those who look from outside."""
        return tuple(self._status(rank, at_work.get(rank)) for rank in range(self.world_size))

    def _status(self, rank: int, lease: Lease | None) -> RankStatus:
        ready, absence = self.ready.get(rank), self.away.get(rank)
        working = "idle" if lease is None else "busy"
        return RankStatus(
            rank=rank,
            state=absence.state if absence else working if ready else "loading",
            device=ready.device if ready else "",
            request_id=None if lease is None else lease.request.id,
            reason=absence.reason if absence else "",
            memory_bytes=ready.memory_bytes if ready else None,
            resident_bytes=ready.resident_bytes if ready else 0,
            use=self._use.get(rank),
            attention=ready.attention if ready else "",
        )
