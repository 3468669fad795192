"""A network between nodes of one process: seeded delays and deaths, no sockets. For tests and small services."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from epe.errors import EpeError, Gone
from epe.transport.link import Parcel, Receiver
from epe.transport.wire import Codec, WireError, error_from_wire, error_to_wire


@dataclass(frozen=True, slots=True)
class Passage:
    """One thing that the network did at `time_s` of its loop; `what` is a message type or a reason."""

    time_s: float
    kind: Literal["tell", "ask", "answer", "loss", "down"]
    sender: str
    target: str
    what: str


class MemoryNetwork:
    """Carries what a real link could carry: messages cross as bytes, tensors by reference.

    Each message takes a time drawn evenly from `latency_s`, but none overtakes another of its pair of
    nodes. The peers of a killed node hear of it `detect_s` later. If `traced`, `trace` lists all that
    happens: the same program with the same seed gives the same list. `message_types` may cross beside
    `WireMessage`.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        latency_s: tuple[float, float] = (0.0, 0.0),
        detect_s: float = 0.05,
        traced: bool = False,
        message_types: tuple[type[Struct], ...] = (),
    ) -> None:
        self.trace: list[Passage] = []
        self.codec = Codec(*message_types)
        self._random = random.Random(seed)
        self._latency_s = latency_s
        self._detect_s = detect_s
        self._traced = traced
        self._nodes: dict[str, _Node] = {}

    def join(self, node: str, receiver: Receiver) -> MemoryLink:
        """Put a node on the network. A name is free again once its node was killed."""
        if former := self._nodes.get(node):
            if former.alive:
                raise ValueError(f"a node {node} is on the network already; kill it first")
            # Its peers cannot take the new node for the old one.
            self._announce(former)
        joined = self._nodes[node] = _Node(node, receiver)
        return MemoryLink(self, joined)

    def kill(self, node: str, *, reason: str = "its process ended") -> None:
        """Cut a node off: its traffic is lost, what is under way too. Its actors are not stopped."""
        dead = self._nodes[node]
        if dead.alive:
            dead.alive, dead.reason = False, reason
            asyncio.get_running_loop().call_later(self._detect_s, self._announce, dead)

    def peer(self, address: str) -> _Node:
        """The node of an address; raises `Gone` if there is none, or if it is known to be gone."""
        name = address.rpartition("@")[2]
        if not (node := self._nodes.get(name)):
            raise Gone(f"{address} cannot be reached: no node {name} is on the network")
        if node.announced:
            raise Gone(f"{name} is gone: {node.reason}")
        return node

    def carry(self, letter: _Letter) -> None:
        """Let a letter arrive later, after all those that its node has sent to the same node before."""
        pipe = letter.source.pipes.setdefault(letter.target, deque())
        pipe.append(letter)
        # A timer takes the oldest letter, not one of its own: so none overtakes another.
        asyncio.get_running_loop().call_later(self._random.uniform(*self._latency_s), self._arrive, pipe)

    def _arrive(self, pipe: deque[_Letter]) -> None:
        letter = pipe.popleft()
        if letter.source.alive and letter.target.alive:
            self._note(letter.kind, letter.sender, letter.address, letter.what)
            letter.arrive()
        else:
            self._note("loss", letter.sender, letter.address, letter.what)

    def _announce(self, dead: _Node) -> None:
        if dead.announced:
            return
        dead.announced = True
        for answered in list(dead.asked):
            if not answered.done():
                answered.set_exception(Gone(f"{dead.name} is gone: {dead.reason}"))
        for node in list(self._nodes.values()):
            node.pipes.pop(dead, None)
            if node.alive:
                self._note("down", dead.name, node.name, dead.reason)
                node.receiver.node_down(dead.name, dead.reason)

    def _note(
        self, kind: Literal["tell", "ask", "answer", "loss", "down"], sender: str, target: str, what: str
    ) -> None:
        if self._traced:
            time_s = asyncio.get_running_loop().time()
            self.trace.append(Passage(time_s, kind, sender, target, what))


class MemoryLink:
    """One node's `Link`."""

    def __init__(self, network: MemoryNetwork, node: _Node) -> None:
        self._network = network
        self._node = node

    @property
    def node(self) -> str:
        return self._node.name

    def send(self, target: str, sender: str, message: Any) -> None:
        peer, packed = self._network.peer(target), self._pack(message)

        def arrive() -> None:
            peer.receiver.deliver(target, sender, self._unpack(packed))

        self._network.carry(_Letter("tell", self._node, peer, sender, target, packed.what, arrive))

    async def ask(self, target: str, sender: str, message: Any, timeout_s: float) -> Any:
        peer, packed = self._network.peer(target), self._pack(message)
        answered: asyncio.Future[_Packed] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            # Not in a task: the ask takes its place in the mailbox before the next letter arrives.
            coming = peer.receiver.answer(target, sender, self._unpack(packed))
            task = peer.own(asyncio.ensure_future(coming))
            task.add_done_callback(partial(self._answer, peer, target, sender, answered))
            # An asker that has left needs no answer.
            answered.add_done_callback(lambda _: task.cancel())

        peer.asked[answered] = None
        try:
            self._network.carry(_Letter("ask", self._node, peer, sender, target, packed.what, arrive))
            async with asyncio.timeout(timeout_s):
                answer = self._unpack(await answered)
        finally:
            del peer.asked[answered]
        if isinstance(answer, WireError):
            raise error_from_wire(answer)
        return answer

    async def close(self) -> None:
        """Leave the network: the peers see this node go down."""
        self._network.kill(self.node, reason="it has left")

    def _answer(
        self,
        peer: _Node,
        target: str,
        sender: str,
        answered: asyncio.Future[_Packed],
        task: asyncio.Future[Any],
    ) -> None:
        if task.cancelled():
            return
        packed = self._pack_answer(target, task)

        def arrive() -> None:
            if not answered.done():
                answered.set_result(packed)

        self._network.carry(_Letter("answer", peer, self._node, target, sender, packed.what, arrive))

    def _pack_answer(self, target: str, task: asyncio.Future[Any]) -> _Packed:
        match task.exception():
            case None:
                try:
                    return self._pack(task.result())
                except TypeError as error:
                    failure: EpeError = Gone(f"{target} could not answer: {error}")
            case EpeError() as error:
                failure = error
            case error:
                failure = Gone(f"{target} could not answer: {error!r}")
        return self._pack(error_to_wire(failure))

    def _pack(self, message: Any) -> _Packed:
        inner = message.message if isinstance(message, Parcel) else message
        tensors = message.tensors if isinstance(message, Parcel) else None
        return _Packed(type(inner).__name__, self._network.codec.encode(inner), tensors)

    def _unpack(self, packed: _Packed) -> Any:
        message = self._network.codec.decode(packed.data)
        return message if packed.tensors is None else Parcel(message, packed.tensors)


@dataclass(frozen=True, slots=True)
class _Packed:
    """A message's type name, its bytes, and a parcel's tensors (None for a message without any parcel)."""

    what: str
    data: bytes
    tensors: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class _Letter:
    kind: Literal["tell", "ask", "answer"]
    source: _Node
    target: _Node
    sender: str
    address: str
    what: str
    arrive: Callable[[], None]


@dataclass(eq=False, slots=True)
class _Node:
    """One life of a node. Sets are dicts: their order must not differ between two runs."""

    name: str
    receiver: Receiver
    alive: bool = True
    announced: bool = False
    reason: str = ""
    pipes: dict[_Node, deque[_Letter]] = field(default_factory=dict)
    asked: dict[asyncio.Future[_Packed], None] = field(default_factory=dict)
    answering: set[asyncio.Future[Any]] = field(default_factory=set)

    def own(self, task: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """Keep a task until it is done."""
        self.answering.add(task)
        task.add_done_callback(self.answering.discard)
        return task
