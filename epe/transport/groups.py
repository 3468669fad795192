"""The process groups of this rank's lanes: built when first wanted, kept, and dropped by all members alike.

A group is an object of our own, in no table of torch's, so dropping it closes its sockets at once and wakes
the members that wait on this rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from typing import Literal

import torch
from torch.distributed import PrefixStore, Store

from epe.errors import Gone
from epe.geometry import over_planes
from epe.messages import Lane
from epe.telemetry.log import get_logger
from epe.transport import symmetric
from epe.transport.agent import reason_of
from epe.transport.exchange import Exchange, GroupExchange, SoloExchange, Wires
from epe.transport.fast import FastExchange, FastWires, LaneMemory
from epe.transport.store import interface_of
from epe.transport.wires import GlooWires, NcclWires, check_seam, loopback_device

Backend = Literal["gloo", "nccl", "fast"]

_POLL_S = 0.002

log = get_logger("transport")


def aligned_lanes(world_size: int, widths: Sequence[int], *, num_planes: int = 1) -> tuple[Lane, ...]:
    """The lanes of each width that start at a multiple of it, narrow ones first; each spans all planes.

    `aligned_lanes(4, (1, 2, 4))` has the ranks 01, 23 and 0123: a lane of one rank needs no group. In two planes
    widths count ranks of one: `aligned_lanes(4, (1, 2), num_planes=2)` has 02, 13 and 0123.
    """
    size = world_size // num_planes
    return tuple(
        Lane(
            ranks=over_planes(
                tuple(range(first, first + width)), num_planes=num_planes, world_size=world_size
            )
        )
        for width in sorted({width for width in widths if width * num_planes > 1})
        for first in range(0, size - width + 1, width)
    )


class Groups:
    """The groups of one rank in one epoch. All but `drop` and `close` is called from the device thread.

    `backend`: `nccl` where each rank has a GPU of its own, `gloo` on CPUs and where ranks share one (tensors
    then pass through host memory). `fast` is `nccl`, but for lanes whose GPUs reach each other's memory. Lanes
    built by `prebuild` are kept; others are forgotten after `keep_leases` leases of the world in which they were
    not used.
    """

    def __init__(
        self,
        store: Store,
        *,
        epoch: int,
        rank: int,
        device: torch.device | str = "cpu",
        backend: Backend = "gloo",
        timeout_s: float = 60.0,
        interface: str | None = None,
        keep_leases: int = 256,
    ) -> None:
        check_seam(backend)
        # A client of its own: building waits on the store, which would block others who use it.
        self._store = PrefixStore(f"groups{epoch}", store.clone())
        self._store.set_timeout(timedelta(seconds=timeout_s))
        self._epoch = epoch
        self._rank = rank
        self._device = torch.device(device)
        self._timeout_s = timeout_s
        self._is_fast = backend == "fast"
        self._gloo_device = loopback_device(interface or interface_of(store)) if backend == "gloo" else None
        self._keep_leases = keep_leases
        self._held: dict[tuple[int, ...], GroupExchange] = {}
        self._last_seq: dict[tuple[int, ...], int] = {}
        self._prebuilt: set[tuple[int, ...]] = set()
        self._next_incarnation: dict[tuple[int, ...], int] = {}
        # Of closed lanes, and freed on the device thread: it must outlive what is just being launched.
        self._ended: list[LaneMemory] = []
        self._closed = False

    @property
    def num_groups(self) -> int:
        """Open groups."""
        return sum(not exchange.closed for exchange in list(self._held.values()))

    @property
    def num_bytes(self) -> int:
        """Of the device's memory, which the other ranks of its lanes reach: of those over memory that GPUs share."""
        held = list(self._held.values())
        return sum(each.wires.num_bytes for each in held if isinstance(each, FastExchange))

    def exchange(self, lane: Lane, *, seq: int = 0) -> Exchange:
        """The exchange of `lane` for the lease `seq`; builds its group, with all members, when it is not there.

        Every member calls this with the same lane and `seq`, so all know when the lane was last used and
        forget it at the same lease. Raises `Gone` for an incarnation that has been dropped.
        """
        while self._ended:
            self._ended.pop().free()
        if lane.width == 1:
            return SoloExchange()
        if self._closed:
            raise Gone(f"the groups of epoch {self._epoch} are closed")
        if lane.incarnation < self._next_incarnation.get(lane.ranks, 0):
            raise Gone(f"lane {lane.ranks} (incarnation {lane.incarnation}) was dropped after an error")
        self._forget_unused(seq)
        held = self._held.get(lane.ranks)
        if held is None or held.lane.incarnation != lane.incarnation:
            held = self._replace(lane, seq)
        self._last_seq[lane.ranks] = seq
        return held

    def prebuild(self, lanes: Sequence[Lane]) -> None:
        """Build the groups of those `lanes` that this rank is in. Every rank passes the lanes in the same order."""
        for lane in lanes:
            if lane.width > 1 and self._rank in lane.ranks:
                self.exchange(lane)
        self.keep(lanes)

    def keep(self, lanes: Sequence[Lane]) -> None:
        """Never forget the groups of these lanes once they are built, as those do that have prebuilt them."""
        self._prebuilt |= {lane.ranks for lane in lanes if lane.width > 1 and self._rank in lane.ranks}

    def drop(self, lane: Lane) -> None:
        """Close the lane's group on this rank, also while it comes together: after an error, or when a member is gone.
        The next lease needs a higher incarnation."""
        if lane.width == 1:
            return
        self._next_incarnation[lane.ranks] = max(
            lane.incarnation + 1, self._next_incarnation.get(lane.ranks, 0)
        )
        held = self._held.get(lane.ranks)
        if held is not None and held.lane.incarnation <= lane.incarnation:
            self._close(lane.ranks)

    def close(self) -> None:
        """Close all groups. A member that waits on this rank fails at once."""
        self._closed = True
        for ranks in list(self._held):
            self._close(ranks)

    def _replace(self, lane: Lane, seq: int) -> GroupExchange:
        self._close(lane.ranks)
        self._next_incarnation[lane.ranks] = lane.incarnation
        try:
            exchange = self._build(lane, f"{'.'.join(map(str, lane.ranks))}/{lane.incarnation}/lease{seq}")
        except RuntimeError as error:
            self.drop(lane)
            raise Gone(
                f"lane {lane.ranks} (incarnation {lane.incarnation}) did not come together "
                f"on rank {self._rank}: {reason_of(error)}"
            ) from error.with_traceback(None)
        self._held[lane.ranks] = exchange
        try:
            self._check_wanted(lane)  # Who dropped it just before did not find it.
        except Gone:
            self._close(lane.ranks)
            raise
        return exchange

    def _build(self, lane: Lane, name: str) -> GroupExchange:
        position = lane.ranks.index(self._rank)
        self._meet(lane, PrefixStore(f"{name}/here", self._store))
        wires = self._connect(lane, name, position)
        if isinstance(wires, FastWires):
            return FastExchange(lane, position=position, wires=wires)
        return GroupExchange(lane, position=position, wires=wires)

    def _meet(self, lane: Lane, store: Store) -> None:
        """Wait until all members are here: building a group blocks until they are, and nothing could end that."""
        here = {rank: str(rank) for rank in lane.ranks}
        store.set(here[self._rank], "1")
        end_s = time.monotonic() + self._timeout_s
        while not store.check(list(here.values())):
            self._check_wanted(lane)
            if time.monotonic() > end_s:
                missing = [rank for rank, key in here.items() if not store.check([key])]
                raise RuntimeError(f"ranks {missing} did not come within {self._timeout_s:g} s")
            time.sleep(_POLL_S)

    def _check_wanted(self, lane: Lane) -> None:
        if self._closed or lane.incarnation < self._next_incarnation[lane.ranks]:
            raise Gone(f"lane {lane.ranks} (incarnation {lane.incarnation}) was given up before all came")

    def _connect(self, lane: Lane, name: str, position: int) -> Wires:
        store = PrefixStore(name, self._store)
        where, timeout_s = (store, position, lane.width), self._timeout_s
        gloo_device, device, is_fast = self._gloo_device, self._device, self._is_fast

        def connect() -> Wires:
            if is_fast:
                found = symmetric.connect(
                    PrefixStore("fast", store),
                    position,
                    lane.width,
                    device=device,
                    check_wanted=partial(self._check_wanted, lane),
                    end=self._ended.append,
                )
                if isinstance(found, FastWires):
                    log.info("lane.shares_memory", ranks=lane.ranks, bytes=found.num_bytes)
                    return found
                log.warning("lane.not_fast", ranks=lane.ranks, reason=found, uses="nccl")
            if gloo_device is None:
                return NcclWires(*where, timeout_s=timeout_s, device=device)
            return GlooWires(*where, timeout_s=timeout_s, device=gloo_device)

        return self._unless_given_up(lane, connect)

    def _unless_given_up(self, lane: Lane, connect: Callable[[], Wires]) -> Wires:
        """Connect in another thread, which is left alone when the lane is given up: a member may have died since it
        was here, and it would be waited for until the time limit."""
        connected: Future[Wires] = Future()
        thread = threading.Thread(target=_settle, args=(connected, connect), name="connect", daemon=True)
        thread.start()
        try:
            while not wait([connected], timeout=_POLL_S).done:
                self._check_wanted(lane)
        except Gone:
            connected.add_done_callback(self._end_unwanted)
            raise
        thread.join()
        return connected.result()

    def _forget_unused(self, seq: int) -> None:
        oldest = seq - self._keep_leases
        for ranks, last_seq in list(self._last_seq.items()):
            if last_seq < oldest and ranks not in self._prebuilt:
                self._close(ranks)

    def _close(self, ranks: tuple[int, ...]) -> None:
        self._last_seq.pop(ranks, None)
        held = self._held.pop(ranks, None)
        if held is not None:
            held.close()
            if isinstance(held, FastExchange):
                self._ended.append(held.wires.memory)

    def _end_unwanted(self, connected: Future[Wires]) -> None:
        """Of a lane that was given up meanwhile."""
        if connected.exception() is not None:
            return
        wires = connected.result()
        wires.close()
        if isinstance(wires, FastWires):
            self._ended.append(wires.memory)


def _settle(future: Future[Wires], connect: Callable[[], Wires]) -> None:
    try:
        future.set_result(connect())
    except BaseException as error:
        future.set_exception(error)
