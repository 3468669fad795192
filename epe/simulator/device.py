"""Devices that take virtual time instead of computing: the real planner and workers run on them.

They check what no report would show: that a lease finds its state, that the ranks of a lane meet,
and that no rank does two things at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from msgspec.structs import replace

from epe.actors.outcome import failure_of
from epe.actors.worker import Outcome
from epe.errors import EpeError, Gone, OutOfMemory
from epe.messages import Decoded, Lane, Lease, LeaseDone, LeaseFailed, Stage, StateHeader
from epe.transport.link import Parcel

Seconds = Callable[[Lease], float]
Fault = Callable[[Lease, int], EpeError | None]
Hangs = Callable[[Lease, int], bool]
Cold = Callable[[Lease, int], bool]
Pixels = Callable[[Lease], Any]
_Order = tuple[Lease, "Future[Parcel] | None", "asyncio.Future[Outcome]"]


class Meeting:
    """The ranks of one lease: it begins when all are there, and can break until the last one is done."""

    def __init__(self) -> None:
        self.arrived: set[int] = set()
        self.begun: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def break_up(self, reason: str) -> None:
        if not self.broken.done():
            self.broken.set_exception(Gone(reason))
            self.broken.exception()  # Nobody may be left to hear of it.

    async def until(self, coming: asyncio.Future[Any]) -> Any:
        """What comes, unless the meeting breaks first."""
        await asyncio.wait({coming, self.broken}, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            coming.cancel()
            self.broken.result()
        return coming.result()


class SimulatedWorld:
    """What the devices share: where the ranks of a lease meet, and what went on when.

    `seconds` gives the device time of a whole lease; `jitter` varies it by a seeded factor, and each rank ends up
    to a hundredth of that later; `fault` may raise on a rank instead of running, and one that `hangs` never ends its
    lease. One that is `cold` says that passes ran as they are in it. `pixels` are what a decode brings out.
    """

    def __init__(
        self,
        seconds: Seconds,
        *,
        seed: int = 0,
        jitter: float = 0.0,
        fault: Fault = lambda lease, rank: None,
        hangs: Hangs = lambda lease, rank: False,
        cold: Cold = lambda lease, rank: False,
        pixels: Pixels = lambda lease: b"",
    ) -> None:
        self.seconds = seconds
        self.pixels = pixels
        self.jitter = jitter
        self.fault = fault
        self.hangs = hangs
        self.cold = cold
        self.random = random.Random(seed)
        self.visits: list[tuple[float, float, Lease]] = []
        self.meetings: dict[int, Meeting] = {}

    def meeting(self, lease: Lease) -> Meeting:
        return self.meetings.setdefault(lease.seq, Meeting())

    async def work(self, batch: list[Lease], rank: int) -> float:
        """Wait for the whole lane, then for as long as a lease, or the batch of it, takes; returns the seconds of both,
        since to a real rank its exchanges and its wait in the first of them look the same."""
        lease, asked_s = batch[0], asyncio.get_running_loop().time()
        meeting = self.meeting(lease)
        meeting.arrived.add(rank)
        if meeting.arrived == set(lease.lane.ranks) and not meeting.begun.done():
            meeting.begun.set_result(self.seconds(lease) * self._varied(self.jitter))
        seconds: float = await meeting.until(asyncio.shield(meeting.begun))
        begin_s = asyncio.get_running_loop().time()
        own_s = seconds * (1 + self.random.uniform(0, self.jitter / 100))
        await meeting.until(asyncio.ensure_future(asyncio.sleep(own_s)))
        if rank == lease.lane.head:
            self.visits += [(begin_s, begin_s + seconds, each) for each in batch]
        return begin_s - asked_s + seconds

    def _varied(self, jitter: float) -> float:
        return 1 + self.random.uniform(-jitter, jitter)


class SimulatedDevice:
    """Implements the worker's `Device` in virtual time. The state of a request is the step that it has reached."""

    def __init__(self, rank: int, world: SimulatedWorld) -> None:
        self.rank = rank
        self.world = world
        self.steps: dict[str, int] = {}
        self.ended: set[str] = set()
        self._packed: set[str] = set()
        self._waiting: list[tuple[str, int, float, asyncio.Future[Parcel]]] = []
        self._gathered: list[_Order] = []
        self._last: asyncio.Future[None] | None = None
        self._at: Lease | None = None
        self._abandoned: set[Lane] = set()
        self.is_dead = False

    def submit(self, lease: Lease, incoming: Future[Parcel] | None) -> asyncio.Future[Outcome]:
        # A rank that let a request go may be given it again: whoever asks from now on waits for the new state.
        self.ended.discard(lease.request.id)
        ending: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._gathered.append((lease, incoming, ending))
        if len(self._gathered) == lease.batch_size:
            self._last = asyncio.ensure_future(self._run(self._gathered, self._last))
            self._gathered = []
        return ending

    def export(self, request_id: str, step: int, *, bare: bool = False) -> asyncio.Future[Parcel]:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Parcel] = loop.create_future()
        self._waiting.append((request_id, step, loop.time(), waiting))
        self._serve()
        return waiting

    def bring_out(self, decoded: Parcel) -> asyncio.Future[Parcel]:
        brought: asyncio.Future[Parcel] = asyncio.get_running_loop().create_future()
        brought.set_result(decoded)
        return brought

    def pack(self, state: Any, *, whole: bool) -> asyncio.Future[Parcel]:
        names: tuple[str, ...] = ("prompt", "latents")
        unchanged = names[:1] if state.request_id in self._packed and not whole else ()
        self._packed.add(state.request_id)
        names = tuple(name for name in names if name not in unchanged)
        packed: asyncio.Future[Parcel] = asyncio.get_running_loop().create_future()
        header = replace(state, names=names, unchanged=unchanged)
        packed.set_result(Parcel(header, tuple(memoryview(bytes(64)) for _ in names)))
        return packed

    def abandon(self, lane: Lane) -> None:
        self._abandoned.add(lane)
        if self._at is not None and self._at.lane == lane:
            self.world.meeting(self._at).break_up(f"lane {lane.ranks} was abandoned")

    def die(self) -> None:
        """Its process ends: the ranks that are in an exchange with it feel that, nobody else does."""
        self.is_dead = True
        if self._at is not None:
            self.world.meeting(self._at).break_up(f"rank {self.rank} has closed its connection")

    def drop(self, request_ids: tuple[str, ...]) -> None:
        for request_id in request_ids:
            self.steps.pop(request_id, None)
            self._packed.discard(request_id)
            self.ended.add(request_id)
        self._serve()

    async def _run(self, batch: list[_Order], earlier: asyncio.Future[None] | None) -> None:
        if earlier is not None:
            await earlier
        leases = [lease for lease, _, _ in batch]
        self._at = leases[0]
        try:
            for lease, incoming, _ in batch:
                if incoming is not None:
                    await self._import(lease, incoming)
            seconds = await self._compute(leases)
        except EpeError as error:
            outcomes = [Outcome(self._failed(lease, error, leases[0])) for lease in leases]
        else:
            outcomes = [self._outcome(lease, seconds) for lease in leases]
        self._at = None
        for (_, _, ending), outcome in zip(batch, outcomes, strict=True):
            if not ending.done():  # Its worker may have ended meanwhile.
                ending.set_result(outcome)

    def _outcome(self, lease: Lease, seconds: float) -> Outcome:
        state = None
        if lease.checkpoint != "none" and self.rank == lease.lane.head:
            step = lease.first_step + lease.num_steps
            state = StateHeader(request_id=lease.request.id, step=step, names=(), reuse=lease.request.reuse)
        return Outcome(self._done(lease, seconds), self._decoded(lease), state)

    async def _import(self, lease: Lease, incoming: Future[Parcel]) -> None:
        parcel = await asyncio.wrap_future(incoming)
        self._put(lease.request.id, parcel.message.step)

    async def _compute(self, batch: list[Lease]) -> float:
        for lease in batch:
            self._check(lease)
        first = batch[0]
        if self.world.hangs(first, self.rank):
            await asyncio.get_running_loop().create_future()
        seconds = await self.world.work(batch, self.rank)
        if first.stage is not Stage.DECODE:
            for lease in batch:
                self._put(lease.request.id, lease.first_step + lease.num_steps)
        return seconds / max(1, first.num_tasks)

    def _check(self, lease: Lease) -> None:
        if error := self.world.fault(lease, self.rank):
            raise error
        if self.is_dead or lease.lane in self._abandoned:
            raise Gone(f"lane {lease.lane.ranks} was abandoned")
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
            seq=lease.seq,
            epoch=lease.epoch,
            rank=self.rank,
            next_step=next_step,
            seconds=seconds,
            is_cold=self.world.cold(lease, self.rank),
        )

    def _failed(self, lease: Lease, error: EpeError, first: Lease) -> LeaseFailed:
        self.world.meeting(first).break_up(f"rank {self.rank} left the lane of lease {lease.seq}")
        consequence = isinstance(error, Gone)
        if lease.batch_size == 1 and not consequence and not isinstance(error, OutOfMemory):
            self.steps.pop(lease.request.id, None)
        # Else the state from before the lease is whole: the request may go on from it.
        self.ended.add(lease.request.id)
        self._serve()
        return LeaseFailed(
            seq=lease.seq,
            epoch=lease.epoch,
            rank=self.rank,
            failure=failure_of(error, stage=lease.stage, step=lease.first_step),
            consequence=consequence,
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
        return Parcel(decoded, (self.world.pixels(lease),))
