"""What is on a rank and nowhere else, so that it may not go yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from epe.actors.ledger import Ledger
from epe.actors.trajectory import Trajectory
from epe.messages import Stage


@dataclass(frozen=True, slots=True)
class Held:
    """Leases that run on a rank or fetch from it, requests whose pixels are on their way from it, and requests whose
    state only this rank has: a checkpoint comes with the report of its lease."""

    num_leases: int
    num_coming: int
    num_alone: int

    @property
    def is_nothing(self) -> bool:
        return not (self.num_leases or self.num_coming or self.num_alone)

    @property
    def is_final(self) -> bool:
        """Whether nothing will change by waiting, unless another rank fetches what only this one has."""
        return not (self.num_leases or self.num_coming)

    def __str__(self) -> str:
        """For example `2 leases run on it or fetch from it, and the state of 1 request is only there`."""
        parts = []
        if self.num_leases:
            parts.append(f"{_counted(self.num_leases, 'lease')} run on it or fetch from it")
        if self.num_coming:
            parts.append(f"what {_counted(self.num_coming, 'request')} left there is on its way")
        if self.num_alone:
            parts.append(f"the state of {_counted(self.num_alone, 'request')} is only there")
        return ", and ".join(parts)


def held_on(
    rank: int, *, ledger: Ledger, trajectories: Iterable[Trajectory], elsewhere: frozenset[int]
) -> Held:
    """What a rank holds; what a rank `elsewhere` holds too does not count."""
    coming = alone = 0
    for trajectory in trajectories:
        if trajectory.pixels_from == rank and trajectory.encoded is None:
            coming += 1
        elif _needs(trajectory, rank, elsewhere):
            alone += 1
    leases = (running.lease for running in ledger.running.values())
    num_leases = sum(
        rank in lease.lane.ranks or any(transfer.source == rank for transfer in lease.transfers)
        for lease in leases
    )
    return Held(num_leases=num_leases, num_coming=coming, num_alone=alone)


def _needs(trajectory: Trajectory, rank: int, elsewhere: frozenset[int]) -> bool:
    """Whether the next lease of a request starts from a state that is on this rank alone."""
    return (
        trajectory.stage in (Stage.DENOISE, Stage.DECODE)
        and trajectory.ending is None
        and rank in trajectory.holders
        and not trajectory.holders & elsewhere
        and not trajectory.is_checkpointed
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count > 1 else "")
