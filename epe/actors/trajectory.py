"""The work of one request, as the planner keeps it: what is leased, what is done, who holds the state."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterator

import msgspec

from epe.actors.accounting import Accounting
from epe.actors.ledger import Running
from epe.messages import (
    Checkpointed,
    Encoded,
    Failure,
    FailureKind,
    Lease,
    Request,
    Reuse,
    Stage,
    Transfer,
)
from epe.planning.costs import CostTable, Workload
from epe.planning.view import TrajectoryView


class Trajectory:
    """Mutable, owned by the planner. `stage` and `step` are what the next lease will do; `finish_s` is what the
    making of the file is expected to take after the last one. `changed` is told when a policy would see it anew.

    `holders` have the state that it starts from, `traces` are all ranks that may have something of the request;
    `pixels_from` is the rank whose pixels are on their way.
    """

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
        self.accounting = Accounting(request, arrival_s=now_s)
        self.stage = Stage.ENCODE
        self.step = 0
        # The last one, as the planner sees it: in the first plane, where every state is held too.
        self.lane: tuple[int, ...] = ()
        self.holders: set[int] = set()
        # It was in a batch that failed, and is drawn alone from then on.
        self.alone = False
        self.traces: set[int] = set()
        self.checkpoint_step: int | None = None
        # The leader has let go what it had, so that a change alone would be of no use to it.
        self.lost_checkpoint = False
        self.leases: deque[Running] = deque()
        self._ending: Failure | None = None
        self.encoded: Encoded | None = None
        # Those under which ranks were lost, by number: of a lane that goes down at once it is one.
        self.lost_leases: set[int] = set()
        self.expiry: asyncio.TimerHandle | None = None
        self.is_broken = False
        # Where it had not the memory: its steps on some lanes, its decode on several ranks.
        self.is_leaner = False
        self.decodes_alone = False
        self.pixels_from: int | None = None
        self.first_seq: int | None = None
        # What it was begun with.
        self.weights: str | None = None
        self._reached_step = 0
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
        done = self.stage is Stage.FINISH or self.encoded is not None
        return not done and self.ending is None and not self.is_broken

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
            alone=self.alone or self._is_drawn_alone,
            reuse=self.request.reuse,
        )

    @property
    def _shape(self) -> tuple[int, ...]:
        """What a batch must have in common, beside the workload: with FlexCache also where in which plan it stands, so
        that all of it compute the same steps."""
        request = self.request
        size = (request.height, request.width, request.num_frames, request.max_sequence_length)
        return size if request.reuse is None else (*size, self.step, *request.reuse.computed)

    @property
    def _is_drawn_alone(self) -> bool:
        return self.request.reuse is not None and self.request.reuse.is_drawn_alone

    def num_tasks(self, num_steps: int) -> int:
        """How many times its next lease takes what its next task takes."""
        if self.stage is not Stage.DENOISE:
            return 1
        return self.request.num_computed(self.step, self.step + num_steps)

    @property
    def next_holders(self) -> set[int]:
        """The ranks that hold the state once the leases that were sent have run."""
        return set(self.leases[-1].lease.lane.ranks) if self.leases else self.holders

    def transfers(self, ranks: tuple[int, ...], *, leaving: Container[int] = ()) -> tuple[Transfer, ...]:
        """Who of `ranks` lacks the state and where it fetches it: spread over the holders, next ones first, from the
        leader's checkpoint where no rank holds it; from one that is `leaving` only if nobody else has it."""
        if self.stage is Stage.ENCODE:
            return ()
        staying = [rank for rank in sorted(self.next_holders) if rank not in leaving]
        if not staying and not self.is_checkpointed:
            staying = sorted(self.next_holders)
        holders: list[int | None] = [*staying] or [None]
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
        move_s = max(costs.migration_s(state_bytes, each.pair) for each in transfers)
        return max(now_s, held_s) + move_s

    def go_on_from(self, step: int) -> None:
        """An earlier life of the service had come so far, and the leader has the state: as if a lease of number 0 had
        ended there."""
        self.first_seq, self.checkpoint_step, self._reached_step = 0, step, step
        self._go_back(step)
        self._renew()

    def go_on_with(self, plan: Reuse) -> None:
        """Its steps follow another plan of FlexCache from now on."""
        self.request = self.accounting.request = msgspec.structs.replace(self.request, reuse=plan)
        self._renew()

    def leased(self, running: Running) -> None:
        """A lease was sent: what comes after it?"""
        lease = running.lease
        self._renew()
        self.accounting.num_migrations += bool(lease.transfers)
        self.leases.append(running)
        if self.first_seq is None:
            self.first_seq = lease.seq
        self.lost_checkpoint = self.lost_checkpoint and lease.checkpoint != "whole"
        self.lane = lease.plane
        self.traces |= set(lease.lane.ranks)
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

    def ran(self, running: Running, *, now_s: float, lost: Container[int] = ()) -> set[int]:
        """A lease has run to its end, on all of its ranks or on those that were not torn away from it at the end
        (their state is the same). Returns the ranks whose state is no longer needed."""
        lease = running.lease
        self._renew()
        self.accounting.ran(running, now_s=now_s)
        self.served_s = now_s
        self._reached_step = max(self._reached_step, lease.first_step + lease.num_steps)
        self.holders = {report.rank for report in running.done if report.rank not in lost}
        if lease.stage is Stage.DECODE:
            self.holders = set()
        stale = self.traces - self.holders - self._needed
        self.traces -= stale
        return stale

    def failed(self, running: Running) -> None:
        """A lease has failed: the request ends when its other leases have ended too."""
        failure = running.cause.failure
        if failure.kind is FailureKind.OUT_OF_MEMORY and (tried := self._tried(running.lease.stage)):
            failure = msgspec.structs.replace(failure, message=f"{failure.message}; {tried}")
        self.ending = self.ending or failure

    def _tried(self, stage: Stage) -> str:
        """What was tried before a stage had no memory, if anything was."""
        if stage is Stage.DENOISE and self.is_leaner:
            return "lanes of fewer ranks were tried before"
        if stage is Stage.DECODE and self.decodes_alone:
            return "a decode on several ranks was tried before"
        return ""

    def bar(self, widths: tuple[int, ...]) -> None:
        """It had not the memory for its steps on lanes of these widths."""
        barred = tuple(sorted({*self.workload.barred, *widths}))
        self.workload = msgspec.structs.replace(self.workload, barred=barred)
        self.is_leaner = self.alone = True
        self._renew()

    def broke(self, running: Running) -> None:
        """A lease has failed through no fault of its own. What was sent after it fails with it, and had not begun;
        then the request goes on from where the lease began."""
        self._renew()
        if self.is_broken:
            return
        lease = running.lease
        self._reached_step = max(self._reached_step, lease.first_step + lease.num_steps)
        self.is_broken = True
        self.stage, self.step = lease.stage, lease.first_step

    def checkpointed(self, message: Checkpointed) -> bool:
        """The leader has a state, or has let it go; False for that of an earlier request of this id."""
        if self.first_seq is None or message.seq < self.first_seq:
            return False
        self.checkpoint_step = message.step
        self.lost_checkpoint = message.step is None
        return True

    def lost_under(self, lease: Lease) -> None:
        """A rank is lost that had this lease before it: under it, if it had begun and did not wait for another."""
        if not self.is_broken and self.leases and self.leases[0].lease is lease:
            self.lost_leases.add(lease.seq)

    def lose(self, rank: int) -> None:
        """A rank is gone with what it held; pixels that had not come from it have to be made again."""
        self._renew()
        self.holders.discard(rank)
        self.traces.discard(rank)
        if self.pixels_from == rank and self.encoded is None:
            self.pixels_from = None
            self.is_broken = True
            self.stage = Stage.DECODE

    def resume(self) -> bool:
        """If nothing is at work, and something broke or the last holder is gone: set where the request goes on, which
        is where its lease began, its last checkpoint, or the beginning. True if it goes on elsewhere."""
        needs_state = self.stage in (Stage.DENOISE, Stage.DECODE)
        lacks_state = needs_state and not self.holders
        if self.leases or self.ending or not (self.is_broken or (lacks_state and not self.is_checkpointed)):
            return False
        self._renew()
        self.is_broken = False
        if lacks_state:
            self._go_back(self.checkpoint_step)
        self.accounting.resumed(num_repeated_steps=self._reached_step - self.step)
        self._reached_step = self.step
        return True

    def outlive(self) -> None:
        """No rank has the weights any more that it was begun with: unless its pixels are there it begins anew."""
        self._renew()
        self.weights = self.first_seq = self.checkpoint_step = None
        self.holders, self.traces = set(), set()
        self.is_broken = self.stage is not Stage.FINISH

    def _go_back(self, checkpoint_step: int | None) -> None:
        if checkpoint_step is None:
            self.stage, self.step = Stage.ENCODE, 0
        else:
            self.step = checkpoint_step
            self.stage = Stage.DECODE if self.step == self.request.num_steps else Stage.DENOISE

    @property
    def is_checkpointed(self) -> bool:
        """Whether the leader has the state that the next lease starts from."""
        return self.checkpoint_step is not None and self.checkpoint_step == self.step

    @property
    def _needed(self) -> set[int]:
        """The ranks of leases that were sent and have not run."""
        return {rank for running in self.leases for rank in running.lease.lane.ranks}
