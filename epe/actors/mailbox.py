"""One actor's mailbox and life: messages in order, answers, crashes and restarts. Private to the actor core."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from epe.errors import EpeError, Gone, Overloaded
from epe.telemetry.log import get_logger

if TYPE_CHECKING:
    from epe.actors.core import Actor

STOP_LIMIT_S = 5.0
# An actor whose mailbox never empties is told so often all the same that it has caught up.
MAX_BEHIND = 16

log = get_logger("actors")


class RestartLimit(Struct, frozen=True, kw_only=True):
    """At most `times` restarts within `within_s`; the first waits `backoff_s`, each further one twice as long."""

    times: int = 3
    within_s: float = 10.0
    backoff_s: float = 0.1


class MailboxStatistics(Struct, frozen=True, kw_only=True):
    """Counts since the actor was spawned, except `length`, which is now."""

    address: str
    length: int
    high_water: int
    delivered: int
    dead_letters: int
    num_restarts: int


@dataclass(slots=True)
class Letter:
    """A message in a mailbox; `reply` is what the asker waits for, None for a tell."""

    message: Any
    reply: asyncio.Future[Any] | None = None


class Mailbox:
    """Owns one actor and the task that runs it. `ended` is called once, when no further life follows."""

    def __init__(
        self,
        address: str,
        *,
        make: Callable[[], Actor],
        restart: RestartLimit | None,
        ended: Callable[[Mailbox, str], None],
    ) -> None:
        self.address = address
        self.actor: Actor | None = make()
        self.answering = False
        self.high_water = self.delivered = self.dead_letters = self.num_restarts = 0
        self._make = make
        self._restart = restart
        self._ended = ended
        self._bound = self.actor.inbox
        self._letters: deque[Letter] = deque()
        # A dict, so that two runs fail the replies in the same order.
        self._replies: dict[asyncio.Future[Any], None] = {}
        self._crashes_s: list[float] = []
        self._closing = False
        self._wake = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run(), name=address)

    def put(self, letter: Letter, *, bounded: bool = True) -> None:
        """Append a letter; raises `Overloaded` when it is `bounded` and the mailbox is full."""
        if bounded and len(self._letters) >= self._bound:
            raise Overloaded(f"the mailbox of {self.address} is full ({self._bound} messages); send later")
        self._letters.append(letter)
        self.high_water = max(self.high_water, len(self._letters))
        self._wake.set()

    def close(self) -> None:
        """End the actor after the message that it has in hand."""
        self._closing = True
        self._wake.set()

    def statistics(self) -> MailboxStatistics:
        return MailboxStatistics(
            address=self.address,
            length=len(self._letters),
            high_water=self.high_water,
            delivered=self.delivered,
            dead_letters=self.dead_letters,
            num_restarts=self.num_restarts,
        )

    # --- lives ---

    async def _run(self) -> None:
        reason = "was cancelled"
        try:
            while (crash := await self._live()) and (pause_s := self._pause_s(crash)) is not None:
                await asyncio.sleep(pause_s)
                if self._closing:
                    break
                self.num_restarts += 1
            reason = _reason(crash)
        finally:
            self._end(reason)

    async def _live(self) -> BaseException | None:
        """One life of the actor: None when it was stopped, else the error that ended it."""
        crash: BaseException | None = None
        try:
            self.actor = self.actor or self._make()
            await self.actor.started()
            await self._serve(self.actor)
        except (Exception, asyncio.CancelledError) as error:
            crash = error
        # A CancelledError without a cancel of this task is a crash as any other: `receive` has awaited
        # something that somebody else cancelled.
        await self._bury("was cancelled" if self.task.cancelling() else _reason(crash), crash)
        if self.task.cancelling():
            raise asyncio.CancelledError
        return crash

    async def _serve(self, actor: Actor) -> None:
        num_handled = 0
        while not self._closing:
            if self._letters:
                await self._handle(actor, self._letters.popleft())
                num_handled += 1
                if not self._letters or num_handled == MAX_BEHIND:
                    actor.caught_up()
                    num_handled = 0
                # One message a turn: a full mailbox must not keep others from the loop.
                await asyncio.sleep(0)
            else:
                self._wake.clear()
                await self._wake.wait()

    async def _handle(self, actor: Actor, letter: Letter) -> None:
        self.delivered += 1
        reply = letter.reply
        if reply is None:
            await actor.receive(letter.message)
            return
        self._replies[reply] = None
        reply.add_done_callback(self._replies.pop)
        self.answering = True
        try:
            result = await actor.receive(letter.message)
        except EpeError as error:
            _fail(reply, error)
        else:
            self._answer(reply, result)
        finally:
            self.answering = False

    def _answer(self, reply: asyncio.Future[Any], result: Any) -> None:
        if not asyncio.isfuture(result):
            if not reply.done():
                reply.set_result(result)
            return
        result.add_done_callback(lambda later: self._answer_later(reply, later))

    def _answer_later(self, reply: asyncio.Future[Any], later: asyncio.Future[Any]) -> None:
        if later.cancelled():
            _fail(reply, Gone(f"{self.address} gave the answer up"))
        elif (error := later.exception()) is None:
            self._answer(reply, later.result())
        elif isinstance(error, EpeError):
            _fail(reply, error)
        else:
            _fail(reply, self._gone(f"could not answer: {_name(error)}", error))

    async def _bury(self, reason: str, crash: BaseException | None) -> None:
        """Whoever waits for an answer of this life hears that there is none; then the actor may tidy up."""
        actor, self.actor = self.actor, None
        for reply in list(self._replies):
            _fail(reply, self._gone(reason, crash))
        if actor is None:
            return
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await actor.stopped(reason)
        except (Exception, asyncio.CancelledError) as error:
            log.error("actor.failed_to_stop", address=self.address, exc_info=error)

    def _pause_s(self, crash: BaseException) -> float | None:
        """How long to wait before the next life, or None if there is none."""
        limit, now_s = self._restart, asyncio.get_running_loop().time()
        pause_s = None
        if limit is not None and not self._closing:
            self._crashes_s = [at_s for at_s in self._crashes_s if now_s - at_s < limit.within_s]
            if len(self._crashes_s) < limit.times:
                pause_s = limit.backoff_s * 2 ** len(self._crashes_s)
                self._crashes_s.append(now_s)
        log.error("actor.crashed", address=self.address, restart_in_s=pause_s, exc_info=crash)
        return pause_s

    def _end(self, reason: str) -> None:
        for letter in self._letters:
            if letter.reply is None:
                self.dead_letters += 1
            else:
                _fail(letter.reply, self._gone(reason))
        self._letters.clear()
        self._ended(self, reason)

    def _gone(self, what: str, cause: BaseException | None = None) -> Gone:
        error = Gone(f"{self.address} {what}")
        error.__cause__ = cause
        return error


def _fail(reply: asyncio.Future[Any], error: EpeError) -> None:
    # The asker may have left: cancelled, or past its time limit.
    if not reply.done():
        reply.set_exception(error)


def _reason(crash: BaseException | None) -> str:
    return "was stopped" if crash is None else f"crashed: {_name(crash)}"


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
