"""What has happened to a request: where and how long it was worked on, moved, repeated; for its reply and the log."""

from __future__ import annotations

from msgspec.structs import replace

from epe.actors.ledger import Running
from epe.messages import Account, CacheAccount, LaneVisit, Lease, Request, Stage


class Accounting:
    """Mutable, owned by a trajectory. `arrival_s` and every `now_s` are on the planner's clock."""

    def __init__(self, request: Request, *, arrival_s: float) -> None:
        self.request = request
        self.arrival_s = arrival_s
        self.predicted_s = 0.0
        self.num_migrations = self.num_recoveries = self.num_repeated_steps = 0
        self.started_s: float | None = None
        self._seconds: dict[Stage, float] = dict.fromkeys(Stage, 0.0)
        self.visits: list[LaneVisit] = []
        self._num_computed_steps = self._num_reused_steps = self._kept_bytes = 0
        # What FlexCache kept in the last lease, at most.
        self.last_kept_bytes = 0

    def ran(self, running: Running, *, now_s: float) -> None:
        """A lease has run to its end, as the last report says."""
        lease = running.lease
        took_s = running.seconds * max(1, running.num_tasks)
        start_s = now_s - took_s
        if self.started_s is None:
            self.started_s = start_s
        self._seconds[lease.stage] += took_s
        if lease.stage is Stage.DENOISE:
            self._drew_steps(lease, num_tasks=running.num_tasks)
        self.last_kept_bytes = max(report.kept_bytes for report in running.done)
        self._kept_bytes = max(self._kept_bytes, self.last_kept_bytes)
        self._visited(lease, start_s - self.arrival_s, now_s - self.arrival_s)

    def made_file(self, seconds: float) -> None:
        """Its file was made, or could not be made, in so long."""
        self._seconds[Stage.FINISH] = seconds

    def resumed(self, *, num_repeated_steps: int) -> None:
        """It goes on after a loss, with steps that had been done before."""
        self.num_recoveries += 1
        self.num_repeated_steps += num_repeated_steps

    def account(self, *, now_s: float) -> Account:
        """All of it."""
        started_s = now_s if self.started_s is None else self.started_s
        return Account(
            request_id=self.request.id,
            queue_s=max(0.0, started_s - self.arrival_s),
            encode_s=self._seconds[Stage.ENCODE],
            denoise_s=self._seconds[Stage.DENOISE],
            decode_s=self._seconds[Stage.DECODE],
            finish_s=self._seconds[Stage.FINISH],
            total_s=now_s - self.arrival_s,
            predicted_s=self.predicted_s,
            num_migrations=self.num_migrations,
            num_recoveries=self.num_recoveries,
            num_repeated_steps=self.num_repeated_steps,
            cache=self._cache_account,
            visits=tuple(self.visits),
        )

    @property
    def _cache_account(self) -> CacheAccount | None:
        if self.request.reuse is None:
            return None
        return CacheAccount(
            settings=self.request.reuse.strategy,
            computed_steps=self._num_computed_steps,
            reused_steps=self._num_reused_steps,
            kept_bytes=self._kept_bytes,
            refreshed=self.request.reuse.refreshed,
        )

    def _drew_steps(self, lease: Lease, *, num_tasks: int) -> None:
        reuse, end_step = self.request.reuse, lease.first_step + lease.num_steps
        num_computed = num_tasks - (reuse.num_lent(lease.first_step, end_step) if reuse else 0)
        self._num_computed_steps += num_computed
        self._num_reused_steps += lease.num_steps - num_computed

    def _visited(self, lease: Lease, start_s: float, end_s: float) -> None:
        last = self.visits[-1] if self.visits else None
        # The end is when the report came, by a clock that may count milliseconds, and the device has its own: no
        # stretch begins before the one before it has ended.
        start_s = max(start_s, last.end_s if last else 0.0)
        if last and last.ranks == lease.lane.ranks and last.stage is lease.stage:
            self.visits[-1] = replace(last, num_steps=last.num_steps + lease.num_steps, end_s=end_s)
            return
        self.visits.append(
            LaneVisit(
                stage=lease.stage,
                ranks=lease.lane.ranks,
                first_step=lease.first_step,
                num_steps=lease.num_steps,
                start_s=start_s,
                end_s=end_s,
            )
        )
