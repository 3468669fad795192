"""The link over `torch.distributed.rpc`: messages as msgpack bytes into one function, tensors beside them.

One link a process and an epoch. Tensors must lie in host memory and must not change until the far end has
them; they arrive as torch tensors, arrays too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from enum import IntEnum
from functools import partial
from typing import Any

import torch
from torch.distributed import Store, rpc

from epe.errors import EpeError, Gone
from epe.telemetry.log import get_logger
from epe.transport import agent
from epe.transport.guard import check_seam
from epe.transport.link import Receiver
from epe.transport.packing import Packed, pack, unpack
from epe.transport.store import interface_of
from epe.transport.wire import Codec, WireError, error_from_wire, error_to_wire

_LATER_S = 1.0  # The asker's own time limit comes first, then torch forgets the call.

log = get_logger("transport")

# RPC finds its function by name, so the process's one open link stands where that function sees it.
_open_link: RpcLink | None = None


class Kind(IntEnum):
    """What a call of `deliver` brings: a message, a message that wants an answer, or the standing call."""

    TELL = 0
    ASK = 1
    STAND = 2


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def deliver(epoch: int, kind: int, target: str, sender: str, *packed: Any) -> torch.futures.Future:
    """All that a peer may call. Runs on the one RPC thread, which only hands over to the loop."""
    answered: torch.futures.Future = torch.futures.Future()
    link = _open_link
    if link is None or link.epoch != epoch:
        here = "no epoch" if link is None else f"epoch {link.epoch}"
        refusal = Gone(f"a message of epoch {epoch} came to a process of {here}")
        answered.set_result(pack(Codec(), error_to_wire(refusal)))
    else:
        link.hand_over(partial(link.arrive, Kind(kind), target, sender, packed, answered))
    return answered


class RpcLink:
    """A `Link` to the other members of one epoch. Use `open`; it belongs to the loop that opened it."""

    def __init__(self, receiver: Receiver, *, epoch: int, node: str, codec: Codec) -> None:
        self.epoch = epoch
        self._node = node
        self._receiver = receiver
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._workers: dict[str, Any] = {}
        self._lost: dict[str, str] = {}
        self._standing: list[torch.futures.Future] = []
        self._answers: set[asyncio.Task[None]] = set()
        self._asked: set[asyncio.Future[Packed]] = set()
        self._closed = False

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
    ) -> RpcLink:
        """Join `members` (the same tuple on each of them) and return when all are there.

        `interface` is the network interface to listen on; by default loopback if the store is there.
        Raises `StartFailed` with the missing members when they are not all there within `timeout_s`.
        """
        check_seam()
        membership = agent.Membership(
            epoch=epoch,
            node=node,
            members=members,
            timeout_s=timeout_s,
            interface=interface or await asyncio.to_thread(interface_of, store),
        )
        link = cls(receiver, epoch=epoch, node=node, codec=codec or Codec())
        await asyncio.to_thread(link._join, store, membership)
        for peer in link._workers:
            link._stand(peer)
        return link

    @property
    def node(self) -> str:
        return self._node

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

    def _on_standing_call(self, peer: str, call: torch.futures.Future) -> None:
        reason = f"it has left epoch {self.epoch}"
        try:
            call.value()
        except RuntimeError as broken:
            reason = agent.reason_of(broken)
        self.hand_over(partial(self._lose, peer, reason))

    # --- on the loop ---

    def arrive(
        self, kind: Kind, target: str, sender: str, packed: Packed, answered: torch.futures.Future
    ) -> None:
        """Take in one call of `deliver`."""
        if self._closed:
            return
        match kind:
            case Kind.STAND:
                # Never answered: it breaks when one of the two processes ends.
                self._standing.append(answered)
            case Kind.TELL:
                answered.set_result(())
                self._take(target, sender, packed)
            case Kind.ASK:
                self._take_ask(target, sender, packed, answered)

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

    def _lose(self, peer: str, reason: str) -> None:
        if not self._closed and peer not in self._lost:
            self._lost[peer] = reason
            self._receiver.node_down(peer, reason)

    def _stand(self, peer: str) -> None:
        call = self._call(peer, Kind.STAND, "", self._node, (b"", False))
        call.add_done_callback(partial(self._on_standing_call, peer))

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
        global _open_link
        before, _open_link = _open_link, self  # Peers may call as soon as this agent is there.
        try:
            self._workers = agent.join(store, membership, endpoint=(deliver.__module__, deliver.__name__))
        except BaseException:
            _open_link = before
            raise

    def _leave(self) -> None:
        global _open_link
        _open_link = None
        agent.leave()
        self._standing.clear()


def _settle(answered: asyncio.Future[Packed], packed: Packed | None, error: Gone | None) -> None:
    if answered.done():
        return
    if error is not None:
        answered.set_exception(error)
    elif packed is not None:
        answered.set_result(packed)
