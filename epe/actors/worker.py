"""One rank's mailbox: takes leases to the device, state from rank to rank, and reports back. It computes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from epe.actors.core import Actor, Down, Ref
from epe.actors.directory import Directory
from epe.errors import EpeError
from epe.messages import (
    Abandon,
    Checkpoint,
    Decoded,
    Drop,
    Fetch,
    Lane,
    Lease,
    LeaseDone,
    LeaseFailed,
    Offered,
    Palette,
    RankReady,
    Stop,
    Transfer,
)
from epe.telemetry.log import get_logger
from epe.transport import shared
from epe.transport.link import Parcel

T = TypeVar("T")

log = get_logger("worker")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a lease ended on this rank. On the head, `decoded` is what `Device.bring_out` takes after a decode, and
    `state` what `Device.pack` takes after a lease that asks for a checkpoint. After a `fatal` one the rank is of no
    more use."""

    report: LeaseDone | LeaseFailed
    decoded: Parcel | None = None
    state: Any = None
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a rank shall end; `orderly` when it was told to, `again` when it is to be started again at once."""

    reason: str
    orderly: bool
    leader_is_gone: bool = False
    again: bool = False


class Device(Protocol):
    """Runs leases one after the other, in the order in which they are given (real: a thread; in tests: a timer)."""

    def submit(self, lease: Lease, incoming: Future[Parcel] | None) -> asyncio.Future[Outcome]:
        """Queue a lease; if `incoming` is given it starts when that state has arrived."""

    def export(self, request_id: str, step: int, *, bare: bool = False) -> asyncio.Future[Parcel]:
        """The state of a request at the boundary before `step`, once it is there, if `bare` without what FlexCache
        keeps; raises `Gone` if it never will be."""

    def pack(self, state: Any, *, whole: bool) -> asyncio.Future[Parcel]:
        """A state in host memory, if not `whole` without what an earlier pack of the request has brought out."""

    def bring_out(self, decoded: Parcel) -> asyncio.Future[Parcel]:
        """The `decoded` picture of an outcome in host memory."""

    def drop(self, request_ids: tuple[str, ...]) -> None:
        """Free what is held of these requests."""

    def abandon(self, lane: Lane) -> None:
        """Give up the exchange of a lane, also while the rank waits in it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """From the rank itself: its model is loaded, and leases may come."""

    device: Device
    ready: RankReady
    palette: Palette | None = None


class Worker(Actor):
    """The actor of one rank, from before its model is loaded, so that it can be told to end meanwhile.

    `stopped_by` is completed when the rank shall end. `device` is there from `Loaded` on: before, the planner
    leases it nothing.
    """

    inbox = 4096
    device: Device

    def __init__(
        self,
        rank: int,
        *,
        directory: Directory,
        stopped_by: asyncio.Future[Ending],
        fetch_timeout_s: float = 60.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.rank = rank
        self.directory = directory
        self.stopped_by = stopped_by
        self.fetch_timeout_s = fetch_timeout_s
        self.tasks: set[asyncio.Task[Any]] = set()
        # uvloop counts its own time in milliseconds, which is as long as a move may take.
        self.clock = clock or asyncio.get_running_loop().time
        # With another process; tried until it is known not to be on this host.
        self._shares_memory = directory.nodes[rank] != directory.leader and shared.IS_POSSIBLE

    async def started(self) -> None:
        self.watch(self.directory.planner)

    async def receive(self, message: object) -> object:
        match message:
            case Loaded(device=device, ready=ready, palette=palette):
                self.device = device
                self.ref(self.directory.planner).tell(ready)
                if palette is not None:
                    self.ref(self.directory.desk).tell(palette)
            case Lease():
                self._lease(message)
            case Fetch(request_id=request_id, step=step, bare=bare):
                # Answered when the state is there; meanwhile the mailbox goes on.
                return self.device.export(request_id, step, bare=bare)
            case Drop(request_ids=request_ids):
                self.device.drop(request_ids)
            case Abandon(lane=lane):
                self.device.abandon(lane)
            case Stop(reason=reason, orderly=orderly, again=again):
                self._stop(Ending(reason, orderly=orderly, again=again))
            case Down(address=address, reason=reason):
                self._stop(Ending(f"{address} is gone: {reason}", orderly=False, leader_is_gone=True))
        return None

    async def stopped(self, reason: str) -> None:
        for task in self.tasks:
            task.cancel()
        self._stop(Ending(reason, orderly=False))

    def _lease(self, lease: Lease) -> None:
        transfer = lease.transfer_to(self.rank)
        if transfer is None:
            self._own(self._run(lease, self.device.submit(lease, None), None))
            return
        incoming: Future[Parcel] = Future()
        fetching = self._own(self._fetch(lease, transfer, incoming))
        self._own(self._run(lease, self.device.submit(lease, incoming), fetching))

    async def _fetch(self, lease: Lease, transfer: Transfer, incoming: Future[Parcel]) -> float:
        """Bring the state here while earlier leases still compute; the seconds that this took, or 0.0 if it failed."""
        fetch = Fetch(request_id=lease.request.id, step=lease.first_step, bare=lease.leaves_kept)
        begin_s = self.clock()
        source = transfer.source
        holder = self.directory.checkpoints if source is None else self.directory.worker(source)
        try:
            parcel = await self.ref(holder).ask(fetch, timeout_s=self.fetch_timeout_s)
        except Exception as error:
            incoming.set_exception(error)
            return 0.0
        move_s: float = self.clock() - begin_s - parcel.message.waited_s
        incoming.set_result(parcel)
        return move_s

    async def _run(
        self, lease: Lease, ending: asyncio.Future[Outcome], fetching: asyncio.Task[float] | None
    ) -> None:
        outcome = await ending
        report = outcome.report
        if isinstance(report, LeaseDone) and fetching is not None:
            report = replace(report, move_s=max(0.0, await fetching))
        self._log_ended(lease, report)
        # The report goes before the picture: the planner can use the ranks while that is still on its way.
        await self._tell(report, lease, outcome.state)
        if outcome.decoded is not None:
            await self._hand_over(await self.device.bring_out(outcome.decoded))
        if outcome.fatal:
            self._stop(Ending(f"lease {lease.seq} left the device unusable", orderly=False))

    async def _tell(self, report: LeaseDone | LeaseFailed, lease: Lease, state: Any) -> None:
        """A report of work whose state is to be kept goes with that state, in one message."""
        if state is None or isinstance(report, LeaseFailed):
            self.ref(self.directory.planner).tell(report)
            return
        parcel = await self.device.pack(state, whole=lease.checkpoint == "whole")
        checkpoint = Checkpoint(seq=lease.seq, header=parcel.message, report=report)
        self.ref(self.directory.checkpoints).tell(Parcel(checkpoint, parcel.tensors))

    async def _hand_over(self, decoded: Parcel) -> None:
        """Large pixels lie in memory that the leader maps, where it can; else they travel."""
        postprocess, (pixels,) = self.ref(self.directory.postprocess), decoded.tensors
        if self._shares_memory and getattr(pixels, "nbytes", 0) > shared.SMALL_BYTES:
            self._shares_memory = await self._is_taken(decoded.message, pixels, postprocess)
            if self._shares_memory:
                return
        postprocess.tell(decoded)

    async def _is_taken(self, decoded: Decoded, pixels: Any, postprocess: Ref) -> bool:
        try:
            with closing(await asyncio.to_thread(shared.Offer, pixels)) as offer:
                taken = await postprocess.ask(
                    Offered(decoded=decoded, pixels=offer.note), timeout_s=self.fetch_timeout_s
                )
        except (OSError, EpeError) as error:
            log.warning("pixels.not_shared", rank=self.rank, request=decoded.request_id, reason=str(error))
            return False
        return bool(taken)

    def _log_ended(self, lease: Lease, report: LeaseDone | LeaseFailed) -> None:
        times: dict[str, float] = {}
        if isinstance(report, LeaseDone):
            times = {
                "seconds": report.seconds,
                "gap_s": report.gap_s,
                "fetch_s": report.fetch_s,
                "move_s": report.move_s,
            }
        log.debug(
            "lease.ended", seq=lease.seq, rank=self.rank, request=lease.request.id, stage=lease.stage, **times
        )

    def _own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._disown)
        return task

    def _disown(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            reason = f"the worker failed: {type(error).__name__}: {error}"
            self._stop(Ending(reason, orderly=False))

    def _stop(self, ending: Ending) -> None:
        if not self.stopped_by.done():
            log.info("rank.was_stopped", rank=self.rank, reason=ending.reason)
            self.stopped_by.set_result(ending)
