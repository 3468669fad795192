"""Devices that take virtual time instead of computing: the real planner and workers run on them.

They check what no report would show: that a lease finds its state, that the ranks of a lane meet,
and that no rank does two things at once.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future

from epe.actors.outcome import failure_of
from epe.actors.worker import Outcome
from epe.errors import EpeError, Gone
from epe.messages import Decoded, Lease, LeaseDone, LeaseFailed, Stage, StateHeader
from epe.transport.link import Parcel

Seconds = Callable[[Lease], float]
Fault = Callable[[Lease, int], EpeError | None]
_Order = tuple[Lease, "Future[Parcel] | None", "asyncio.Future[Outcome]"]


class SimulatedWorld:
    """What the devices share: where the ranks of a lease meet, and what went on when.

    `seconds` gives the device time of a whole lease; `jitter` varies it by a seeded factor;
    `fault` may raise on a rank instead of running.
    """

    def __init__(
        self,
        seconds: Seconds,
        *,
        seed: int = 0,
        jitter: float = 0.0,
        fault: Fault = lambda lease, rank: None,
    ) -> None:
        self.seconds = seconds
        self.jitter = jitter
        self.fault = fault
        self.random = random.Random(seed)
        self.visits: list[tuple[float, float, Lease]] = []
        self._meetings: dict[int, asyncio.Future[float]] = {}
        self._arrived: defaultdict[int, set[int]] = defaultdict(set)

    async def meet(self, lease: Lease, rank: int) -> float:
        """Wait for the whole lane; the seconds that the lease takes."""
        meeting = self._meetings.setdefault(lease.seq, asyncio.get_running_loop().create_future())
        self._arrived[lease.seq].add(rank)
        if self._arrived[lease.seq] == set(lease.lane.ranks) and not meeting.done():
            factor = 1 + self.random.uniform(-self.jitter, self.jitter)
            meeting.set_result(self.seconds(lease) * factor)
        return await meeting

    def break_up(self, lease: Lease, rank: int) -> None:
        """A rank fails: the others of its lane fail with it."""
        meeting = self._meetings.setdefault(lease.seq, asyncio.get_running_loop().create_future())
        if not meeting.done():
            meeting.set_exception(Gone(f"rank {rank} left the lane of lease {lease.seq}"))
            meeting.exception()


class SimulatedDevice:
    """Implements the worker's `Device` in virtual time. The state of a request is the step that it has reached."""

    def __init__(self, rank: int, world: SimulatedWorld) -> None:
        self.rank = rank
        self.world = world
        self.steps: dict[str, int] = {}
        self.ended: set[str] = set()
        self._waiting: list[tuple[str, int, float, asyncio.Future[Parcel]]] = []
        self._gathered: list[_Order] = []
        self._last: asyncio.Future[None] | None = None

    def submit(self, lease: Lease, incoming: Future[Parcel] | None) -> asyncio.Future[Outcome]:
        # A rank that let a request go may be given it again: whoever asks from now on waits for the new state.
        self.ended.discard(lease.request.id)
        ending: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._gathered.append((lease, incoming, ending))
        if len(self._gathered) == lease.batch_size:
            self._last = asyncio.ensure_future(self._run(self._gathered, self._last))
            self._gathered = []
        return ending

    def export(self, request_id: str, step: int) -> asyncio.Future[Parcel]:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Parcel] = loop.create_future()
        self._waiting.append((request_id, step, loop.time(), waiting))
        self._serve()
        return waiting

    def drop(self, request_ids: tuple[str, ...]) -> None:
        for request_id in request_ids:
            self.steps.pop(request_id, None)
            self.ended.add(request_id)
        self._serve()

    async def _run(self, batch: list[_Order], earlier: asyncio.Future[None] | None) -> None:
        if earlier is not None:
            await earlier
        leases = [lease for lease, _, _ in batch]
        try:
            for lease, incoming, _ in batch:
                if incoming is not None:
                    await self._import(lease, incoming)
            seconds = await self._compute(leases)
        except EpeError as error:
            outcomes = [Outcome(self._failed(lease, error)) for lease in leases]
        else:
            outcomes = [Outcome(self._done(lease, seconds), self._decoded(lease)) for lease in leases]
        for (_, _, ending), outcome in zip(batch, outcomes, strict=True):
            ending.set_result(outcome)

    async def _import(self, lease: Lease, incoming: Future[Parcel]) -> None:
        parcel = await asyncio.wrap_future(incoming)
        self._put(lease.request.id, parcel.message.step)

    async def _compute(self, batch: list[Lease]) -> float:
        for lease in batch:
            self._check(lease)
        first = batch[0]
        seconds = await self.world.meet(first, self.rank)
        begin_s = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
        if self.rank == first.lane.head:
            self.world.visits += [(begin_s, begin_s + seconds, lease) for lease in batch]
        if first.stage is not Stage.DECODE:
            for lease in batch:
                self._put(lease.request.id, lease.first_step + lease.num_steps)
        return seconds / max(1, first.num_steps)

    def _check(self, lease: Lease) -> None:
        if error := self.world.fault(lease, self.rank):
            raise error
        held = self.steps.get(lease.request.id)
        if lease.stage is not Stage.ENCODE and held != lease.first_step:
            raise Gone(
                f"lease {lease.seq} starts at step {lease.first_step}, but rank {self.rank} holds {held}"
            )

    def _put(self, request_id: str, step: int) -> None:
        self.steps[request_id] = step
        self._serve()

    def _serve(self) -> None:
        """Answer those whose state is here, and those whose state will never be."""
        still = []
        now_s = asyncio.get_running_loop().time()
        for request_id, step, asked_s, waiting in self._waiting:
            held = self.steps.get(request_id)
            if held == step:
                waited_s = now_s - asked_s
                header = StateHeader(request_id=request_id, step=step, names=(), waited_s=waited_s)
                waiting.set_result(Parcel(header))
            elif request_id in self.ended or (held is not None and held > step):
                waiting.set_exception(Gone(f"state of request {request_id} at step {step} is gone"))
            else:
                still.append((request_id, step, asked_s, waiting))
        self._waiting = still

    def _done(self, lease: Lease, seconds: float) -> LeaseDone:
        next_step = lease.first_step + lease.num_steps
        return LeaseDone(
            seq=lease.seq, epoch=lease.epoch, rank=self.rank, next_step=next_step, seconds=seconds
        )

    def _failed(self, lease: Lease, error: EpeError) -> LeaseFailed:
        self.world.break_up(lease, self.rank)
        if lease.batch_size == 1 and not isinstance(error, Gone):
            self.steps.pop(lease.request.id, None)
        self.ended.add(lease.request.id)
        self._serve()
        return LeaseFailed(
            seq=lease.seq,
            epoch=lease.epoch,
            rank=self.rank,
            failure=failure_of(error, stage=lease.stage, step=lease.first_step),
            consequence=isinstance(error, Gone),
        )

    def _decoded(self, lease: Lease) -> Parcel | None:
        if lease.stage is not Stage.DECODE:
            return None
        request = lease.request
        decoded = Decoded(
            request_id=request.id,
            output_format=request.output_format,
            output_compression=request.output_compression,
        )
        return Parcel(decoded, (b"",))
