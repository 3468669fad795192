"""Actors on one event loop: references, timers, watches and the system that holds the mailboxes.

Kept: an actor handles one message at a time; messages of one sender to one actor arrive in the order in
which they were sent; an ask ends with its answer, an `EpeError` or `TimeoutError`. Not kept: a message to
an actor that is gone, or on a node that dies, is lost; an ask that timed out may still be handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from msgspec import Struct

from epe.actors.mailbox import STOP_LIMIT_S, Letter, Mailbox, MailboxStatistics, RestartLimit, log
from epe.errors import Gone, Overloaded
from epe.messages.system import Down, Watch
from epe.transport.link import Link, Parcel

__all__ = ["Actor", "ActorSystem", "Down", "MailboxStatistics", "Ref", "RestartLimit", "Statistics"]


class Actor:
    """State with one owner, changed only by the messages that it receives.

    A raise in `started` or `receive` is a crash: askers get `Gone`, and the actor lives on as a new
    one from its factory if its restart limit allows, with the messages that wait for it. An `EpeError`
    raised in answer to an ask is no crash but the answer. While it answers an ask an actor never asks:
    two that ask each other would wait for ever; it returns a future instead, which a task completes.
    """

    inbox: ClassVar[int] = 1024
    system: ActorSystem
    address: str

    async def started(self) -> None:
        """Called once, before the first message."""

    async def receive(self, message: Any) -> Any:
        """Handle one struct or `Parcel`; what is returned answers an ask, and is dropped after a tell.

        A future defers the answer: the next message is handled meanwhile.
        """

    def caught_up(self) -> None:
        """Called when no message waits after the one just handled, and in a long queue now and then: the place for
        what is to be done once for many messages. Raising is a crash."""

    async def stopped(self, reason: str) -> None:
        """Called once, after the last message, also after a crash; has 5 s."""

    @property
    def now_s(self) -> float:
        """Seconds on the clock by which `after` goes."""
        return asyncio.get_running_loop().time()

    def ref(self, address: str) -> Ref:
        """Another actor: `name@node`, or `name` on this node."""
        return Ref(self.system, self.system.absolute(address), self.address)

    def after(self, delay_s: float, message: Any) -> asyncio.TimerHandle:
        """Send a message to oneself later. It passes the bound of the mailbox (a lost tick would end a
        periodic actor for good), and is dropped if this actor has crashed meanwhile."""
        return asyncio.get_running_loop().call_later(delay_s, self.system.ring, self, message)

    def watch(self, address: str) -> None:
        """Be sent one `Down` when that actor or its node is gone; one that is not spawned yet is awaited."""
        self.system.watch(self.address, self.system.absolute(address))


class Ref:
    """Where to send: one actor, on this node or another. It says nothing about whether that actor lives."""

    __slots__ = ("_sender", "_system", "address")

    def __init__(self, system: ActorSystem, address: str, sender: str) -> None:
        self.address = address
        self._system = system
        self._sender = sender

    def tell(self, message: Any) -> None:
        """Send without an answer; raises `Overloaded` if the mailbox is on this node and full."""
        self._system.tell(self.address, self._sender, message)

    async def ask(self, message: Any, *, timeout_s: float = 5.0) -> Any:
        """Send and wait for the answer; raises the `EpeError` that the actor raised, `Gone` if there is
        no such actor or it is lost before it answers, `TimeoutError` when it is late."""
        return await self._system.ask(self.address, self._sender, message, timeout_s=timeout_s)

    def __repr__(self) -> str:
        return f"Ref({self.address!r})"


class Statistics(Struct, frozen=True, kw_only=True):
    """The mailboxes of a node, and how many messages found no place in any, ended ones included."""

    mailboxes: tuple[MailboxStatistics, ...]
    dead_letters: int


class ActorSystem:
    """The actors of one process; the near end (`Receiver`) of its link to other nodes."""

    def __init__(self, node: str, *, link: Link | None = None) -> None:
        self.node = node
        self._link = link
        self._mailboxes: dict[str, Mailbox] = {}
        self._ended: dict[str, str] = {}
        self._watchers: dict[str, dict[str, None]] = {}
        self._dead_letters = 0

    def attach(self, link: Link) -> None:
        """Use `link` from now on (a new epoch has its own). Watches of other nodes' actors are made anew."""
        self._link = link
        for target, watchers in list(self._watchers.items()):
            if _node_of(target) != self.node:
                for watcher in list(watchers):
                    self._watch_remote(watcher, target)

    def spawn(self, name: str, factory: Callable[[], Actor], *, restart: RestartLimit | None = None) -> Ref:
        """Start an actor; without `restart` its first crash ends it. Raises `ValueError` if it exists."""
        if not name or "@" in name:
            raise ValueError(f"{name!r} is no actor name; use a word without @")
        if name in self._mailboxes:
            raise ValueError(f"{name}@{self.node} exists already")
        address = self.absolute(name)

        def make() -> Actor:
            actor = factory()
            actor.system, actor.address = self, address
            return actor

        self._mailboxes[name] = Mailbox(address, make=make, restart=restart, ended=self._has_ended)
        self._ended.pop(name, None)
        return self.ref(name)

    def absolute(self, address: str) -> str:
        """`name` as `name@node`."""
        return address if "@" in address else f"{address}@{self.node}"

    def ref(self, address: str) -> Ref:
        """A reference for callers that are no actors."""
        return Ref(self, self.absolute(address), f"outside@{self.node}")

    def watch(self, watcher: str, target: str) -> None:
        """Send `watcher` one `Down` when `target` ends or its node is gone, at once if it has ended."""
        name, node = _split(target)
        if node == self.node and name in self._ended:
            self._notify(watcher, Down(address=target, reason=self._ended[name]))
            return
        self._watchers.setdefault(target, {})[watcher] = None
        if node != self.node:
            self._watch_remote(watcher, target)

    async def stop(self, name: str | None = None) -> None:
        """End one actor, or all, each after the message in hand; one that takes over 5 s is cancelled."""
        chosen = [box for key, box in self._mailboxes.items() if name in (None, key)]
        for box in chosen:
            box.close()
        # An actor that stops itself ends when it has handled this message.
        if tasks := [box.task for box in chosen if box.task is not asyncio.current_task()]:
            await asyncio.wait(tasks, timeout=STOP_LIMIT_S)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def statistics(self) -> Statistics:
        mailboxes = tuple(box.statistics() for box in self._mailboxes.values())
        dead_letters = self._dead_letters + sum(box.dead_letters for box in mailboxes)
        return Statistics(mailboxes=mailboxes, dead_letters=dead_letters)

    # --- sending, for Ref and Actor ---

    def tell(self, target: str, sender: str, message: Any) -> None:
        try:
            if _node_of(target) == self.node:
                self._required_mailbox(target).put(Letter(message))
            else:
                self._required_link(target).send(target, sender, message)
        except Overloaded:
            raise
        except Gone as error:
            self._drop(target, sender, message, reason=str(error))

    async def ask(self, target: str, sender: str, message: Any, *, timeout_s: float) -> Any:
        self._refuse_nested_ask(sender)
        try:
            async with asyncio.timeout(timeout_s):
                if _node_of(target) == self.node:
                    return await self._post(target, message)
                return await self._required_link(target).ask(target, sender, message, timeout_s)
        except TimeoutError:
            late = f"{target} did not answer {_kind(message)} within {timeout_s:g} s"
            raise TimeoutError(late) from None

    def ring(self, actor: Actor, message: Any) -> None:
        """A timer of `actor` is due."""
        box = self._mailbox(actor.address)
        if box and box.actor is actor:
            box.put(Letter(message), bounded=False)

    # --- the near end of the link ---

    def deliver(self, target: str, sender: str, message: Any) -> None:
        match message:
            case Watch():
                self.watch(sender, target)
            case Down(address=address):
                # The watch is used up already if the end of the whole node was noticed first.
                if self._unwatch(target, address):
                    self._notify(target, message)
            case _:
                try:
                    self._required_mailbox(target).put(Letter(message))
                except Gone as error:
                    self._drop(target, sender, message, reason=str(error))

    def answer(self, target: str, sender: str, message: Any) -> Coroutine[Any, Any, Any]:
        # A plain function: the ask must be in the mailbox before the next message is delivered.
        try:
            reply = self._post(target, message)
        except Gone as error:
            self._drop(target, sender, message, reason=str(error))
            reply = asyncio.get_running_loop().create_future()
            reply.set_exception(error)
        return _wait_for(reply)

    def node_down(self, node: str, reason: str) -> None:
        watched = [target for target in self._watchers if _node_of(target) == node]
        # Of a node whose actors have ended before, or whose watchers have, nobody here wants to hear.
        missed = any(self._mailbox(watcher) for target in watched for watcher in self._watchers[target])
        (log.warning if missed else log.debug)("node.was_lost", node=node, reason=reason)
        for target in watched:
            self._tell_watchers(target, reason)
        for target, watchers in list(self._watchers.items()):
            for watcher in [watcher for watcher in watchers if _node_of(watcher) == node]:
                self._unwatch(watcher, target)

    # --- within ---

    def _mailbox(self, address: str) -> Mailbox | None:
        name, node = _split(address)
        return self._mailboxes.get(name) if node == self.node else None

    def _post(self, target: str, message: Any) -> asyncio.Future[Any]:
        reply = asyncio.get_running_loop().create_future()
        self._required_mailbox(target).put(Letter(message, reply))
        return reply

    def _required_mailbox(self, target: str) -> Mailbox:
        if box := self._mailbox(target):
            return box
        ended = self._ended.get(_split(target)[0])
        raise Gone(f"there is no actor {target}" + (f"; it {ended}" if ended else ""))

    def _required_link(self, target: str) -> Link:
        if self._link is None:
            raise Gone(f"{target} cannot be reached: {self.node} has no link")
        return self._link

    def _refuse_nested_ask(self, sender: str) -> None:
        box = self._mailbox(sender)
        if box and box.answering and box.task is asyncio.current_task():
            raise RuntimeError(f"{sender} asks while it answers an ask; return a future instead")

    def _watch_remote(self, watcher: str, target: str) -> None:
        try:
            self._required_link(target).send(target, watcher, Watch())
        except Gone as error:
            self._tell_watchers(target, str(error))

    def _unwatch(self, watcher: str, target: str) -> bool:
        watchers = self._watchers.get(target, {})
        if watcher not in watchers:
            return False
        del watchers[watcher]
        if not watchers:
            del self._watchers[target]
        return True

    def _tell_watchers(self, target: str, reason: str) -> None:
        for watcher in self._watchers.pop(target, {}):
            self._notify(watcher, Down(address=target, reason=reason))

    def _notify(self, watcher: str, down: Down) -> None:
        if _node_of(watcher) != self.node:
            self.tell(watcher, down.address, down)
        elif box := self._mailbox(watcher):
            box.put(Letter(down), bounded=False)

    def _has_ended(self, box: Mailbox, reason: str) -> None:
        name, _ = _split(box.address)
        del self._mailboxes[name]
        self._ended[name] = reason
        self._dead_letters += box.dead_letters
        log.info("actor.ended", address=box.address, reason=reason)
        self._tell_watchers(box.address, reason)

    def _drop(self, target: str, sender: str, message: Any, *, reason: str) -> None:
        if box := self._mailbox(target):
            count = box.dead_letters = box.dead_letters + 1
        else:
            count = self._dead_letters = self._dead_letters + 1
        # The 1st, 2nd, 4th, 8th, ...: an overload must not become a flood of lines.
        if count & (count - 1) == 0:
            what = {"target": target, "sender": sender, "message": _kind(message)}
            log.warning("message.was_dropped", reason=reason, dead_letters=count, **what)


async def _wait_for(reply: asyncio.Future[Any]) -> Any:
    return await reply


def _split(address: str) -> tuple[str, str]:
    name, _, node = address.rpartition("@")
    return name, node


def _node_of(address: str) -> str:
    return _split(address)[1]


def _kind(message: Any) -> str:
    return type(message.message if isinstance(message, Parcel) else message).__name__
