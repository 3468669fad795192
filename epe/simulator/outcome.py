"""What a simulation leaves: one record a request, when which ranks worked on what, and how long plans took."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epe.messages import LaneVisit, Stage


class Record(Struct, frozen=True, kw_only=True):
    """One request. Times are seconds on the clock of the simulation; those of `visits` are since its arrival."""

    request_id: str
    size: str
    client_id: str
    end: Literal["finished", "expired"]
    arrival_s: float
    started_s: float | None
    finish_s: float
    deadline_s: float | None
    single_s: float
    best_s: float
    longest_wait_s: float
    num_migrations: int
    visits: tuple[LaneVisit, ...]

    @property
    def latency_s(self) -> float:
        return self.finish_s - self.arrival_s

    @property
    def normalized_latency(self) -> float:
        """Latency over the best one that it could have alone."""
        return self.latency_s / self.best_s

    @property
    def met(self) -> bool:
        """Finished, and in time if it had a deadline."""
        in_time = self.deadline_s is None or self.finish_s <= self.deadline_s + 1e-9
        return self.end == "finished" and in_time


class Work(Struct, frozen=True, kw_only=True):
    """One lease as it ran: from when to when all of its ranks worked on it."""

    seq: int
    begin_s: float
    end_s: float
    ranks: tuple[int, ...]
    request_id: str
    stage: Stage
    first_step: int
    num_steps: int

    @property
    def rank_seconds(self) -> float:
        return (self.end_s - self.begin_s) * len(self.ranks)


class Outcome(Struct, frozen=True, kw_only=True):
    """One run. `plan_s` are wall seconds of each call of the policy; `replaced` says why the fallback took over."""

    policy: str
    world_size: int
    records: tuple[Record, ...]
    work: tuple[Work, ...]
    plan_s: tuple[float, ...]
    replaced: str | None = None

    @property
    def begin_s(self) -> float:
        return min((record.arrival_s for record in self.records), default=0.0)

    @property
    def end_s(self) -> float:
        return max((record.finish_s for record in self.records), default=0.0)
