"""The link over `torch.distributed.rpc`: messages as msgpack bytes into one function, tensors beside them.

One link a process and an epoch. Tensors must lie in host memory and must not change until the far end has
them; they arrive as torch tensors, arrays too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.distributed import Store, rpc

from epe.errors import EpeError, Gone
from epe.telemetry.log import get_logger
from epe.transport import agent, door
from epe.transport.delivery import ENDPOINT, Kind, deliver, direct_calls_to
from epe.transport.guard import check_seam, guard
from epe.transport.link import Receiver
from epe.transport.listener import still_listens
from epe.transport.packing import Packed, pack, unpack
from epe.transport.store import interface_of
from epe.transport.wire import Codec, WireError, error_from_wire, error_to_wire

_LATER_S = 1.0  # The asker's own time limit comes first, then torch forgets the call.

log = get_logger("transport")

# A newcomer that dies in the door must not leave it open, nor one that meets a dying peer there stand in it for long.
_UNGUARDED_S = 30.0
_LET_IN_S = 20.0


class RpcLink:
    """A `Link` to the other members of one epoch. Use `open`; it belongs to the loop that opened it.

    `failure` is completed, with the reason, when those that come could not reach this process: it should end, and its
    next life will be reached.
    """

    def __init__(self, receiver: Receiver, *, epoch: int, node: str, codec: Codec) -> None:
        self.epoch = epoch
        self._node = node
        self._receiver = receiver
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._workers: dict[str, Any] = {}
        self._unguarded: asyncio.TimerHandle | None = None
        self._lost: dict[str, str] = {}
        self._standing: dict[str, torch.futures.Future] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._asked: set[asyncio.Future[Packed]] = set()
        self._closed = False
        self.failure: asyncio.Future[str] = self._loop.create_future()

    @classmethod
    async def open(
        cls,
        receiver: Receiver,
        *,
        store: Store,
        epoch: int,
        node: str,
        members: tuple[str, ...],
        timeout_s: float = 30.0,
        interface: str | None = None,
        codec: Codec | None = None,
        life: int = 0,
    ) -> RpcLink:
        """Join `members` (the same tuple on each of them) and return when all are there; with a `life` of 1 or more,
        come back among those that are there, when the leader lets this node in.

        `interface` is the network interface to listen on; by default loopback if the store is there.
        Raises `StartFailed` with the missing members when they are not all there within `timeout_s`, and `Gone` when
        the leader lets nobody in.
        """
        check_seam()
        membership = agent.Membership(
            epoch=epoch,
            node=node,
            members=members,
            timeout_s=timeout_s,
            interface=interface or await asyncio.to_thread(interface_of, store),
            life=life,
        )
        link = cls(receiver, epoch=epoch, node=node, codec=codec or Codec())
        await asyncio.to_thread(link._join, store, membership)
        for peer in link._workers:
            link._stand(peer)
        return link

    @property
    def node(self) -> str:
        return self._node

    @property
    def has_lost(self) -> bool:
        """Whether some peer is gone."""
        return bool(self._lost) and not self._closed

    async def readmit(self, store: Store, *, timeout_s: float = _LET_IN_S) -> None:
        """The leader's part: let in the lost nodes that have knocked, one after the other. Nobody else is disturbed.

        A node that does not come in within `timeout_s` may knock again in its next life.
        """
        knocks = await asyncio.to_thread(door.knocks, store, tuple(self._lost))
        if knocks and not self._can_be_reached():
            return
        for node, life in knocks.items():
            await self._readmit(store, node, life, timeout_s=timeout_s)

    async def _readmit(self, store: Store, node: str, life: int, *, timeout_s: float) -> None:
        await self._tell_all(Kind.STRIKE_OFF, node, "")
        self._strike_off(node)
        present = await self._list_present(store)
        name = agent.worker_name(node, epoch=self.epoch, life=life)
        # One that meets a dying peer there cannot join any more.
        let_in = partial(door.let_in, unless=lambda: any(peer in self._lost for peer in present))
        came = await asyncio.to_thread(let_in, store, node, life, present, timeout_s)
        if not came:
            await self._list_present(store)  # It may wait for its turn with torch until this frees it.
        else:
            self._admit(node, name)
            await self._tell_all(Kind.ADMIT, node, name)
            await asyncio.to_thread(door.welcome, store, node, life)
        log.info("node.came_back" if came else "node.stayed_away", node=node, life=life)

    async def _list_present(self, store: Store) -> dict[str, str]:
        """The names of the agents that are there, by node; a newcomer will call these alone."""
        present = {peer: worker.name for peer, worker in self._workers.items() if peer not in self._lost}
        present[self._node] = rpc.get_worker_info().name
        await asyncio.to_thread(agent.list_only, store, epoch=self.epoch, names=present.values())
        return present

    async def _tell_all(self, kind: Kind, node: str, name: str) -> None:
        """Have every living peer do this; one that dies meanwhile need not."""
        for peer in [peer for peer in self._workers if peer not in self._lost and peer != node]:
            answered: asyncio.Future[Packed] = self._loop.create_future()
            call = self._call(peer, kind, node, name, (b"", False), timeout_s=5.0)
            call.add_done_callback(partial(self._on_answer, peer, answered))
            with contextlib.suppress(Gone):
                await answered

    def send(self, target: str, sender: str, message: Any) -> None:
        peer = self._reachable(target)
        self._call(peer, Kind.TELL, target, sender, pack(self._codec, message))

    async def ask(self, target: str, sender: str, message: Any, timeout_s: float) -> Any:
        peer = self._reachable(target)
        packed = pack(self._codec, message)
        call = self._call(peer, Kind.ASK, target, sender, packed, timeout_s=timeout_s + _LATER_S)
        answered: asyncio.Future[Packed] = self._loop.create_future()
        self._asked.add(answered)
        call.add_done_callback(partial(self._on_answer, peer, answered))
        try:
            async with asyncio.timeout(timeout_s):
                answer = unpack(self._codec, await answered)
        except TimeoutError as late:
            raise TimeoutError(f"{target} has not answered within {timeout_s:g} s") from late
        finally:
            self._asked.discard(answered)
        if isinstance(answer, WireError):
            raise error_from_wire(answer)
        return answer

    async def close(self) -> None:
        """Leave without a farewell: peers see this node go down, open asks end with `Gone`."""
        if self._closed:
            return
        self._closed = True
        for task in self._answers:
            task.cancel()
        for answered in self._asked:
            _settle(answered, None, Gone(f"{self._node} has closed its link of epoch {self.epoch}"))
        await asyncio.to_thread(self._leave)

    # --- on the RPC thread ---

    def hand_over(self, call: Callable[[], None]) -> None:
        """Have the loop make this call."""
        # A loop that has ended has nobody left to tell; peers hear of it from the closing socket.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _on_answer(self, peer: str, answered: asyncio.Future[Packed], call: torch.futures.Future) -> None:
        packed, error = None, None
        try:
            packed = call.value()
        except RuntimeError as broken:
            error = Gone(f"{peer} is gone: {agent.reason_of(broken)}")
        self.hand_over(partial(_settle, answered, packed, error))

    def _on_standing_call(self, peer: str, worker: Any, call: torch.futures.Future) -> None:
        reason = f"it has left epoch {self.epoch}"
        try:
            call.value()
        except RuntimeError as broken:
            reason = agent.reason_of(broken)
        self.hand_over(partial(self._lose, peer, reason, worker))

    # --- on the loop ---

    def arrive(
        self, kind: Kind, target: str, sender: str, packed: Packed, answered: torch.futures.Future
    ) -> None:
        """Take in one call of `deliver`."""
        if self._closed:
            return
        match kind:
            case Kind.STAND:
                # Never answered: it breaks when one of the two processes ends. That of a former life, whose connection
                # it keeps, goes when the next one stands.
                self._standing[sender] = answered
            case Kind.TELL:
                answered.set_result(())
                self._take(target, sender, packed)
            case Kind.ASK:
                self._take_ask(target, sender, packed, answered)
            case Kind.STRIKE_OFF:
                # Without an answer: a process that cannot be reached is about to end.
                if self._can_be_reached():
                    self._strike_off(target)
                    answered.set_result(())
            case Kind.ADMIT:
                self._admit(target, sender)
                answered.set_result(())

    def _take(self, target: str, sender: str, packed: Packed) -> None:
        try:
            self._receiver.deliver(target, sender, unpack(self._codec, packed))
        except EpeError as error:
            log.warning("message.refused", target=target, sender=sender, reason=str(error))

    def _take_ask(self, target: str, sender: str, packed: Packed, answered: torch.futures.Future) -> None:
        try:
            # Called here and not in the task, so that the ask keeps its place among the messages.
            coming = self._receiver.answer(target, sender, unpack(self._codec, packed))
        except EpeError as error:
            answered.set_result(pack(self._codec, error_to_wire(error)))
            return
        task = self._loop.create_task(self._answer(target, coming, answered))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, target: str, coming: Awaitable[Any], answered: torch.futures.Future) -> None:
        try:
            packed = pack(self._codec, await coming)
        except EpeError as error:
            packed = pack(self._codec, error_to_wire(error))
        except Exception as error:
            # The border between processes: whatever went wrong here is the asker's to know.
            packed = pack(self._codec, error_to_wire(Gone(f"{target} could not answer: {error!r}")))
        if not self._closed:
            answered.set_result(packed)

    def _lose(self, peer: str, reason: str, worker: Any) -> None:
        # What is heard of an earlier life says nothing about this one.
        if not self._closed and peer not in self._lost and self._workers.get(peer) is worker:
            self._lost[peer] = reason
            self._receiver.node_down(peer, reason)

    def _strike_off(self, node: str) -> None:
        """A node will come back: forget its former agent, and for a while hear what agents say when they join."""
        if (worker := self._workers.get(node)) is not None:
            self._lose(node, "it has come back as another process", worker)
            with contextlib.suppress(RuntimeError):  # This process may have joined after it was gone.
                agent.strike_off(worker)
        guard(ENDPOINT, joining=True)
        if self._unguarded is not None:
            self._unguarded.cancel()
        self._unguarded = self._loop.call_later(_UNGUARDED_S, self._close_door)

    def _can_be_reached(self) -> bool:
        """Whether a newcomer could connect to this process."""
        reachable = still_listens()
        if not reachable and not self.failure.done():
            self.failure.set_result(
                "its listener was closed by a broken connection, so that no rank could come back"
            )
        return reachable

    def _admit(self, node: str, name: str) -> None:
        self._workers[node] = agent.worker_of(name)
        self._lost.pop(node, None)
        self._stand(node)
        self._close_door()

    def _close_door(self) -> None:
        if not self._closed:
            guard(ENDPOINT, joining=False)

    def _stand(self, peer: str) -> None:
        call = self._call(peer, Kind.STAND, "", self._node, (b"", False))
        call.add_done_callback(partial(self._on_standing_call, peer, self._workers[peer]))

    def _reachable(self, target: str) -> str:
        peer = target.rpartition("@")[2]
        if self._closed:
            raise Gone(f"the link of {self._node} is closed")
        if peer in self._lost:
            raise Gone(f"{peer} is gone: {self._lost[peer]}")
        if peer not in self._workers:
            raise Gone(f"{peer} is no peer in epoch {self.epoch}; peers are {', '.join(self._workers)}")
        return peer

    def _call(
        self, peer: str, kind: Kind, target: str, sender: str, packed: Packed, *, timeout_s: float = 0.0
    ) -> torch.futures.Future:
        """Without a time limit the call stands until it is answered or the peer is gone."""
        args = (self.epoch, int(kind), target, sender, *packed)
        return rpc.rpc_async(self._workers[peer], deliver, args=args, timeout=timeout_s)

    # --- in a thread: joining and leaving block ---

    def _join(self, store: Store, membership: agent.Membership) -> None:
        before = direct_calls_to(self)  # Peers may call as soon as this agent is there.
        try:
            present = None
            if membership.life > 0:
                present = door.knock(store, membership.node, membership.life, membership.timeout_s)
                membership = replace(membership, timeout_s=min(membership.timeout_s, _LET_IN_S))
            self._workers = agent.join(store, membership, endpoint=ENDPOINT, present=present)
            if membership.life > 0:
                door.enter(store, membership.node, membership.life, membership.timeout_s)
        except BaseException:
            direct_calls_to(before)
            raise

    def _leave(self) -> None:
        direct_calls_to(None)
        agent.leave()
        self._standing.clear()


def _settle(answered: asyncio.Future[Packed], packed: Packed | None, error: Gone | None) -> None:
    if answered.done():
        return
    if error is not None:
        answered.set_exception(error)
    elif packed is not None:
        answered.set_result(packed)
