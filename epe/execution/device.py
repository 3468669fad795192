"""The device thread: one thread that runs this rank's leases, in the order in which they were given."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

import msgspec
import torch

from epe.actors.outcome import failure_of
from epe.actors.worker import Outcome
from epe.errors import Gone, OutOfMemory
from epe.execution.copying import Copying, in_host_memory
from epe.execution.memory import Meter, NoMeter
from epe.execution.run import Lanes, Work, run_lease
from epe.execution.states import States
from epe.graphs import Graphs
from epe.messages import Decoded, DeviceUse, Lane, Lease, LeaseDone, LeaseFailed, Stage
from epe.models.contract import Adapter, State
from epe.models.reusing import without_kept
from epe.transport.link import Parcel

_Order = tuple[Lease, "Future[Parcel] | None", "asyncio.Future[Outcome]"]


class ThreadDevice:
    """Implements the worker's `Device` with a real adapter. Create it on the event loop that uses it."""

    FETCH_TIMEOUT_S = 120.0

    def __init__(
        self,
        adapter: Adapter,
        lanes: Lanes,
        *,
        rank: int,
        device: torch.device,
        meter: Meter | None = None,
        graphs: Graphs | None = None,
        decodes_in_bands: bool = False,
    ) -> None:
        self.adapter = adapter
        self.lanes = lanes
        self.rank = rank
        self.device = device
        self.meter = meter or NoMeter()
        self._graphs = graphs
        if graphs is not None:
            graphs.in_gaps = True
        self._decodes_in_bands = decodes_in_bands
        self.states = States()
        # What an earlier checkpoint of a request has brought out already: most of a state never changes.
        self._brought_out: dict[str, dict[str, torch.Tensor]] = {}
        self._copying = Copying(device)
        self._loop = asyncio.get_running_loop()
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._idle_since_s = time.perf_counter()
        self._thread = threading.Thread(target=self._work, name=f"device-{rank}", daemon=True)
        self._thread.start()

    # --- called on the event loop ---

    def submit(self, lease: Lease, incoming: Future[Parcel] | None) -> asyncio.Future[Outcome]:
        ending: asyncio.Future[Outcome] = self._loop.create_future()
        self.states.expect(lease.request.id)
        self._orders.put((lease, incoming, ending))
        return ending

    def export(self, request_id: str, step: int, *, bare: bool = False) -> asyncio.Future[Parcel]:
        """Copies to host memory beside the steps: neither the loop nor they wait."""
        return asyncio.ensure_future(self._export(request_id, step, bare=bare))

    async def _export(self, request_id: str, step: int, *, bare: bool) -> Parcel:
        begin_s = time.perf_counter()
        state = await asyncio.wrap_future(self.states.when_at(request_id, step))
        waited_s = time.perf_counter() - begin_s
        leaving = without_kept(state) if bare else state
        header, tensors = await self._copying.run(partial(self.adapter.export_state, leaving))
        return Parcel(msgspec.structs.replace(header, waited_s=waited_s), tensors)

    def pack(self, state: State, *, whole: bool) -> asyncio.Future[Parcel]:
        """As `export`, if not `whole` without the tensors that were in the pack before."""
        return asyncio.ensure_future(self._pack(state, whole=whole))

    async def _pack(self, state: State, *, whole: bool) -> Parcel:
        before = {} if whole else self._brought_out.get(state.request.id, {})
        same = tuple(name for name, tensor in state.tensors.items() if before.get(name) is tensor)
        self._brought_out[state.request.id] = state.tensors
        fresh = {name: tensor for name, tensor in state.tensors.items() if name not in same}
        part = State(request=state.request, step=state.step, tensors=fresh, scalars=state.scalars)
        header, tensors = await self._copying.run(partial(self.adapter.export_state, part))
        return Parcel(msgspec.structs.replace(header, unchanged=same), tensors)

    def bring_out(self, decoded: Parcel) -> asyncio.Future[Parcel]:
        """Copied beside the steps of the leases that follow."""
        return asyncio.ensure_future(self._bring_out(decoded))

    async def _bring_out(self, decoded: Parcel) -> Parcel:
        (pixels,) = decoded.tensors
        return Parcel(decoded.message, (await self._copying.run(partial(in_host_memory, pixels)),))

    def abandon(self, lane: Lane) -> None:
        self.lanes.drop(lane)

    def drop(self, request_ids: tuple[str, ...]) -> None:
        for request_id in request_ids:
            self._brought_out.pop(request_id, None)
            self.states.end(request_id, "it was let go")

    def close(self, *, timeout_s: float = 5.0) -> None:
        """End the thread after the leases that it has."""
        self._orders.put(None)
        self._thread.join(timeout_s)
        self._copying.close()

    # --- runs on the device thread ---

    def _work(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        while (batch := self._next_batch()) is not None:
            outcomes = self._outcomes(batch)
            self._idle_since_s = time.perf_counter()
            for (_, _, ending), outcome in zip(batch, outcomes, strict=True):
                self._loop.call_soon_threadsafe(_complete, ending, outcome)
            if self._graphs is not None:
                # Now, when no lease waits for it but those that come after.
                self._graphs.capture_seen(goes_on=any(_goes_on(lease) for lease, _, _ in batch))

    def _next_batch(self) -> list[_Order] | None:
        """The next lease with all that run with it; None at the end."""
        batch: list[_Order] = []
        while not batch or len(batch) < batch[0][0].batch_size:
            if (order := self._orders.get()) is None:
                return None
            batch.append(order)
        return batch

    def _outcomes(self, batch: list[_Order]) -> list[Outcome]:
        received_s, leases = time.perf_counter(), [lease for lease, _, _ in batch]
        try:
            for lease, incoming, _ in batch:
                if incoming is not None:
                    self._import(lease, incoming)
            self.meter.reset()
            begin_s = time.perf_counter()
            works = run_lease(
                leases,
                adapter=self.adapter,
                lanes=self.lanes,
                states=self.states,
                synchronize=self._synchronize,
                in_bands=self._decodes_in_bands,
            )
        except Exception as error:
            return [Outcome(self._failed(lease, error), fatal=_is_fatal(error)) for lease in leases]
        gap_s, fetch_s = begin_s - self._idle_since_s, begin_s - received_s
        return [
            self._done(lease, work, gap_s=gap_s, fetch_s=fetch_s)
            for lease, work in zip(leases, works, strict=True)
        ]

    def _done(self, lease: Lease, work: Work, *, gap_s: float, fetch_s: float) -> Outcome:
        report = LeaseDone(
            seq=lease.seq,
            epoch=lease.epoch,
            rank=self.rank,
            next_step=work.next_step,
            seconds=work.seconds,
            gap_s=gap_s,
            fetch_s=fetch_s,
            peak_bytes=self._peak_bytes(),
            num_computed=work.num_computed,
            kept_bytes=work.kept_bytes,
            is_cold=self._graphs is not None and self._graphs.has_seen,
            use=self._use(),
        )
        if self.rank != lease.lane.head:
            return Outcome(report)
        state = self.states.take(lease.request.id, work.next_step) if lease.checkpoint != "none" else None
        return Outcome(report, _decoded(lease, work), state)

    def _peak_bytes(self) -> int:
        """Without what graphs hold for whoever needs it next, which is within what graphs may keep."""
        return max(0, self.meter.peak_bytes() - (self._graphs.memory_bytes if self._graphs else 0))

    def _use(self) -> DeviceUse:
        """What the device is left with."""
        return DeviceUse(
            allocated_bytes=self.meter.resident_bytes(),
            reserved_bytes=self.meter.reserved_bytes(),
            lanes_bytes=self.lanes.num_bytes,
            graphs=None if self._graphs is None else self._graphs.statistics.counts,
        )

    def _import(self, lease: Lease, incoming: Future[Parcel]) -> None:
        parcel = incoming.result(self.FETCH_TIMEOUT_S)
        state: State = self.adapter.import_state(lease.request, parcel.message, parcel.tensors)
        self._synchronize()  # Who copies it on from here does not wait for this thread's stream.
        self.states.put(state)

    def _failed(self, lease: Lease, error: Exception) -> LeaseFailed:
        """Close the lane's exchange, so that its other ranks do not wait for this one. The state from before the lease
        is whole: where another rank, the fetch, the device, another one of a batch or want of memory is to blame, the
        request may go on from it."""
        if lease.lane.width > 1:
            self.lanes.drop(lease.lane)
        if isinstance(error, torch.OutOfMemoryError):
            error = OutOfMemory(
                f"the device has no memory for stage {lease.stage}: {error}", stage=lease.stage
            )
        failure = failure_of(error, stage=lease.stage, step=lease.first_step)
        consequence = isinstance(error, (Gone, TimeoutError)) or _is_fatal(error)
        ran_out = isinstance(error, OutOfMemory)
        if ran_out:
            self._free_memory()
        keep = lease.batch_size > 1 or consequence or ran_out
        (self.states.stay if keep else self.states.end)(lease.request.id, failure.message)
        return LeaseFailed(
            seq=lease.seq,
            epoch=lease.epoch,
            rank=self.rank,
            failure=failure,
            consequence=consequence,
        )

    def _free_memory(self) -> None:
        """For the next try: the graphs can be captured anew, and what is left in pieces may be enough in one."""
        if self._graphs is not None:
            self._graphs.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _goes_on(lease: Lease) -> bool:
    """Whether more steps of its kind will come."""
    return lease.stage is Stage.DENOISE and lease.first_step + lease.num_steps < lease.request.num_steps


def _is_fatal(error: Exception) -> bool:
    """Whether the device is of no more use after this error."""
    return isinstance(error, torch.AcceleratorError) and not isinstance(error, torch.OutOfMemoryError)


def _complete(ending: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not ending.done():
        ending.set_result(outcome)


def _decoded(lease: Lease, work: Work) -> Parcel | None:
    if work.pixels is None:
        return None
    message = Decoded(
        request_id=lease.request.id,
        output_format=lease.request.output_format,
        output_compression=lease.request.output_compression,
        fps=lease.request.fps,
    )
    return Parcel(message, (work.pixels,))
