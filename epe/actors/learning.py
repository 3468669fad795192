"""What reports teach the cost table: in the warm-up its entries, in service their corrections."""

from __future__ import annotations

from epe.actors.ledger import Running
from epe.messages import FailureKind, LeaseDone, RankReady, Stage
from epe.planning.calibration import Round
from epe.planning.costs import CostKey, CostTable, Workload
from epe.planning.work import cost_key, shared_width
from epe.telemetry.log import get_logger

log = get_logger("planner")


class Learning:
    """Mutable, owned by the planner. `round` is that of the warm-up, None in service; `is_new` says that the table
    has learned something since it was last kept."""

    def __init__(self, costs: CostTable, *, correct: bool = True) -> None:
        self.costs = costs
        self.correct = correct
        self.round: Round | None = None
        self.is_new = False

    def met(self, ranks: list[RankReady]) -> None:
        """All ranks are there: the one with the least memory bounds what is planned."""
        limits = [ready.memory_bytes for ready in ranks if ready.memory_bytes is not None]
        self.costs.memory.limit_bytes = min(limits, default=None)
        self.costs.memory.resident_bytes = max(ready.resident_bytes for ready in ranks)

    def ran(self, running: Running, workload: Workload) -> None:
        """A lease has run on all of its ranks."""
        lease = running.lease
        _log_ran(running)
        width = shared_width(lease.stage, len(lease.plane))
        key = cost_key(workload, lease.stage, width, batch=lease.batch_size)
        reuse = lease.request.reuse
        has_usual_steps = reuse is None or reuse.has_usual_steps
        if has_usual_steps:
            self.costs.memory.enter(key, max(report.peak_bytes for report in running.done))
        # The first step of a warm-up request uses kernels and buffers for the first time. A batch took its time once.
        is_first_use = self.round is not None and lease.stage is Stage.DENOISE and lease.first_step == 0
        # Of a lease that computed no step, or not the whole of it, there is nothing to learn.
        if not is_first_use and lease.batch_place == 0 and running.num_tasks > 0 and has_usual_steps:
            self._took(key, running.seconds, is_cold=running.is_cold)
        for report in running.done:
            self._moved(running, report, workload.state_bytes)

    def failed(self, running: Running, workload: Workload) -> None:
        """A lease has failed. A batch that ran out of memory is not tried again; a request alone would have no other
        way."""
        lease, limit_bytes = running.lease, self.costs.memory.limit_bytes
        ran_out = running.cause.failure.kind is FailureKind.OUT_OF_MEMORY
        if ran_out and lease.batch_size > 1 and limit_bytes is not None:
            key = cost_key(workload, lease.stage, len(lease.plane), batch=lease.batch_size)
            self.costs.memory.enter(key, limit_bytes + 1)

    def finished(self, workload: Workload, seconds: float) -> None:
        """A file was made, so long after its picture was decoded."""
        self._took(cost_key(workload, Stage.FINISH, 1), seconds)

    def _took(self, key: CostKey, seconds: float, *, is_cold: bool = False) -> None:
        """A width that was tried once, before its passes were captured, would seem slow, and not be tried again."""
        if self.round is None:
            if self.correct and not (is_cold and self.costs.foresees(key)):
                self.costs.observe(key, seconds)
                self.is_new = True
        elif self.round.measures == "tasks":
            self.costs.record(key, seconds, is_cold=is_cold)
            self.is_new = True

    def _moved(self, running: Running, report: LeaseDone, state_bytes: int) -> None:
        transfer = running.lease.transfer_to(report.rank)
        pair = None if transfer is None else transfer.pair
        if running.lease.leaves_kept:
            return  # It was less than the workload says.
        if pair is None or report.move_s <= 0:
            return
        if self.round is None:
            if self.correct:
                self.costs.moves.observe(pair, state_bytes, report.move_s)
                self.is_new = True
        elif self.round.measures == "moves":
            self.costs.moves.record(pair, state_bytes, report.move_s)
            self.is_new = True


def _log_ran(running: Running) -> None:
    lease, done = running.lease, running.done
    log.debug(
        "lease.ran",
        seq=lease.seq,
        request=lease.request.id,
        stage=lease.stage,
        width=len(lease.plane),
        batch=lease.batch_size,
        num_steps=lease.num_steps,
        seconds=running.seconds,
        predicted_s=running.task_s,
        gap_s=max(report.gap_s for report in done),
        fetch_s=max(report.fetch_s for report in done),
        move_s=max(report.move_s for report in done),
    )
