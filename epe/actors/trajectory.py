"""The work of one request, as the planner keeps it: what is leased, what is done, who holds the state."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from epe.actors.ledger import Running
from epe.messages import Account, Encoded, Failure, LaneVisit, Lease, Request, Stage, Transfer
from epe.planning.costs import CostTable, Workload
from epe.planning.view import TrajectoryView


class Trajectory:
    """Mutable, owned by the planner. `stage` and `step` are what the next lease will do; `finish_s` is what the
    making of the file is expected to take after the last one. `changed` is told when a policy would see it anew."""

    def __init__(
        self,
        request: Request,
        workload: Workload,
        *,
        now_s: float,
        for_client: bool,
        finish_s: float = 0.0,
        changed: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> None:
        self.request = request
        self.workload = workload
        self.for_client = for_client
        self.finish_s = finish_s
        self.changed = changed
        self.arrival_s = self.served_s = now_s
        self.stage = Stage.ENCODE
        self.step = 0
        # The last one, as the planner sees it: in the first plane, where every state is held too.
        self.lane: tuple[int, ...] = ()
        self.holders: set[int] = set()
        # It was in a batch that failed, and is drawn alone from then on.
        self.alone = False
        # Leases that were sent behind that batch, and cannot find its outcome.
        self._void: set[int] = set()
        self._strewn: set[int] = set()
        self.leases: deque[Running] = deque()
        self._ending: Failure | None = None
        self.encoded: Encoded | None = None
        self.visits: list[LaneVisit] = []
        self.seconds: dict[Stage, float] = dict.fromkeys(Stage, 0.0)
        self.num_migrations = 0
        self.predicted_s = 0.0
        self.started_s: float | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self._view: TrajectoryView | None = None

    @property
    def deadline_s(self) -> float | None:
        """When the picture must be decoded, on the planner's clock, so that its file is there in time."""
        relative_s = self.request.deadline_s
        return None if relative_s is None else self.arrival_s + relative_s - self.finish_s

    @property
    def ending(self) -> Failure | None:
        """Why it will end before it is drawn, as soon as its leases have ended."""
        return self._ending

    @ending.setter
    def ending(self, failure: Failure | None) -> None:
        self._ending = failure
        self._renew()

    @property
    def wants_lease(self) -> bool:
        return self.stage is not Stage.FINISH and self.ending is None and not self._void

    @property
    def view(self) -> TrajectoryView:
        """What a policy sees; made anew only when a lease has changed something, so that a long queue is cheap."""
        if self._view is None:
            self._view = self._make_view()
        return self._view

    def _renew(self) -> None:
        self._view = None
        self.changed(self)

    def _make_view(self) -> TrajectoryView:
        ready_s = self.leases[-1].ends_s if self.leases else self.served_s
        return TrajectoryView(
            request_id=self.request.id,
            workload=self.workload,
            stage=self.stage,
            step=self.step,
            num_steps=self.request.num_steps,
            arrival_s=self.arrival_s,
            served_s=self.served_s,
            ready_s=ready_s,
            deadline_s=self.deadline_s,
            priority=self.request.priority,
            client_id=self.request.client_id,
            lane=self.lane,
            holders=tuple(sorted(self.lane)),
            num_leases=len(self.leases),
            shape=self._shape,
            alone=self.alone,
        )

    @property
    def _shape(self) -> tuple[int, ...]:
        """What a batch must have in common, beside the workload."""
        request = self.request
        return request.height, request.width, request.num_frames, request.max_sequence_length

    @property
    def next_holders(self) -> set[int]:
        """The ranks that hold the state once the leases that were sent have run."""
        return set(self.leases[-1].lease.lane.ranks) if self.leases else self.holders

    def transfers(self, ranks: tuple[int, ...]) -> tuple[Transfer, ...]:
        """Who of `ranks` lacks the state and where it fetches it: spread over the holders, next ones first."""
        if self.stage is Stage.ENCODE:
            return ()
        holders = sorted(self.next_holders)
        lacking = [rank for rank in ranks if rank not in holders]
        return tuple(
            Transfer(rank=rank, source=holders[index % len(holders)]) for index, rank in enumerate(lacking)
        )

    def state_s(self, transfers: tuple[Transfer, ...], costs: CostTable, *, now_s: float) -> float:
        """When the state is expected to be where the next lease needs it."""
        if not transfers:
            return now_s
        held_s = self.leases[-1].ends_s if self.leases else now_s
        state_bytes = self.workload.state_bytes
        move_s = max(costs.migration_s(state_bytes, (each.source, each.rank)) for each in transfers)
        return max(now_s, held_s) + move_s

    def leased(self, running: Running) -> None:
        """A lease was sent: what comes after it?"""
        lease = running.lease
        self._renew()
        self.num_migrations += bool(lease.transfers)
        self.leases.append(running)
        self.lane = lease.plane
        self._go_on_after(lease)

    def _go_on_after(self, lease: Lease) -> None:
        match lease.stage:
            case Stage.ENCODE:
                self.stage = Stage.DENOISE
            case Stage.DENOISE:
                self.step = lease.first_step + lease.num_steps
                self.stage = Stage.DECODE if self.step == self.request.num_steps else Stage.DENOISE
            case _:
                self.stage = Stage.FINISH

    def ended(self) -> Iterator[Running]:
        """Take the leases that all of their ranks have answered, in the order in which they were sent.

        A narrow lease may be answered before a wide one ahead of it, whose last rank reports late; taken in that
        order, old holders would be believed and a finished request would be ended twice.
        """
        while self.leases and not self.leases[0].waiting:
            yield self.leases.popleft()

    def ran(self, running: Running, *, now_s: float) -> set[int]:
        """A lease has run to its end on all of its ranks. Returns the ranks whose state is no longer needed."""
        lease = running.lease
        self._renew()
        repeats = lease.num_steps if lease.stage is Stage.DENOISE else 1
        start_s = now_s - running.seconds * repeats
        if self.started_s is None:
            self.started_s = start_s
        self.seconds[lease.stage] += running.seconds * repeats
        self.served_s = now_s
        self._visited(lease, start_s - self.arrival_s, now_s - self.arrival_s)
        if lease.seq in self._void:  # it has found a state after all
            self._void.discard(lease.seq)
            self._go_on_after(lease)
        held = self.may_hold | set(lease.lane.ranks)
        self.holders, self._strewn = set(lease.lane.ranks), set()
        if lease.stage is Stage.DECODE:
            self.holders = set()
        return held - self.holders - self._needed

    def failed(self, running: Running) -> None:
        """A lease has failed: the request ends when its other leases have ended too. After a batch it goes on alone,
        since another one of it may be the cause."""
        self._renew()
        lease = running.lease
        self._strewn |= set(lease.lane.ranks)
        if lease.seq in self._void:
            self._void.discard(lease.seq)
        elif lease.batch_size > 1 and (holders := self.holders - {report.rank for report in running.done}):
            self.alone = True
            self.holders = holders
            self.stage, self.step = Stage.DENOISE, lease.first_step
            self._void = {sent.lease.seq for sent in self.leases}
        elif self.ending is None:
            self.ending = running.cause.failure

    @property
    def may_hold(self) -> set[int]:
        """The ranks to be told when the state is no longer needed."""
        return self.holders | self._strewn

    @property
    def _needed(self) -> set[int]:
        """The ranks of leases that were sent and have not run."""
        return {rank for running in self.leases for rank in running.lease.lane.ranks}

    def _visited(self, lease: Lease, start_s: float, end_s: float) -> None:
        last = self.visits[-1] if self.visits else None
        if last and last.ranks == lease.lane.ranks and last.stage is lease.stage:
            self.visits[-1] = msgspec.structs.replace(
                last, num_steps=last.num_steps + lease.num_steps, end_s=end_s
            )
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

    def account(self, *, now_s: float) -> Account:
        """What happened, for the reply and the log."""
        started_s = now_s if self.started_s is None else self.started_s
        return Account(
            request_id=self.request.id,
            queue_s=max(0.0, started_s - self.arrival_s),
            encode_s=self.seconds[Stage.ENCODE],
            denoise_s=self.seconds[Stage.DENOISE],
            decode_s=self.seconds[Stage.DECODE],
            finish_s=self.seconds[Stage.FINISH],
            total_s=now_s - self.arrival_s,
            predicted_s=self.predicted_s,
            num_migrations=self.num_migrations,
            visits=tuple(self.visits),
        )
