"""Watches the children of one parent from their start to their end, and decides the parent's exit code.

A rank that is lost is started again. The order of an end, as the user notices it: a first SIGINT or SIGTERM lets the
leader drain and stop the ranks; what has not ended within the limit is terminated, then killed. A second SIGINT kills
at once.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from epe.launch.child import Child, wait_all
from epe.launch.revivals import Revivals
from epe.launch.spec import ChildSpec

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
# A rank whose leader is gone ends with this: it is not to be started again.
EXIT_LEADER_GONE = 4
# One that was told to end, and is to be started again at once.
EXIT_AGAIN = 5
# torchrun passes a terminal's Ctrl-C on to processes that the terminal has already told.
SAME_CTRL_C_S = 0.5


class Limits(Struct, frozen=True, kw_only=True):
    """How long the parent waits: for work to drain, for an orderly end after it, for a signal to act. A rank whose loop
    does not turn is killed: after `stopped_s` if a signal has stopped it, else after `silent_s`; `look_s` is between
    two looks. One that comes back has `start_s` until its loop turns for the first time."""

    drain_s: float
    grace_s: float = 5.0
    terminate_s: float = 3.0
    stopped_s: float = 1.5
    silent_s: float = 30.0
    look_s: float = 0.25
    start_s: float = 1800.0

    @property
    def close_s(self) -> float:
        """From the signal until the last child must have ended."""
        return self.drain_s + self.grace_s


class Parent:
    """Owns its children; `await run()` returns the exit code when none of them lives."""

    def __init__(
        self,
        *,
        limits: Limits,
        start: Callable[[ChildSpec], Awaitable[Child]],
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._limits = limits
        self._start = start
        self._revivals = Revivals()
        self._say = say or _say_on_stderr
        self._children: list[Child] = []
        self._asked_at_s: float | None = None
        self._overdue = asyncio.Event()
        self._hurry = asyncio.Event()
        self._limit: asyncio.TimerHandle | None = None

    def adopt(self, child: Child) -> None:
        """Take a started child; one that is asked to end before all have started is told so here."""
        self._children.append(child)
        if self._asked_at_s is not None:
            self._ask_to_end(child)

    @contextmanager
    def hearing_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM are the parent's from here on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._hear, number)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def run(self) -> int:
        """Watch until no child lives."""
        orderly = asyncio.create_task(self._watch())
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({orderly, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if orderly.done():
                return orderly.result()
            self._say("second SIGINT: ending at once")
            return EXIT_INTERRUPTED
        finally:
            orderly.cancel()
            hurry.cancel()
            await self.kill_all()

    async def kill_all(self) -> None:
        """Kill what still lives, and say what even that did not end."""
        for child in self._living():
            child.kill()
        await wait_all(self._living(), timeout_s=self._limits.terminate_s)
        for child in self._living():
            self._say(f"{child.describe_end()}, {self._limits.terminate_s:g} s after SIGKILL")

    # -- the orderly way -----------------------------------------------------------------------------------

    async def _watch(self) -> int:
        ends = {asyncio.create_task(child.wait()): child for child in self._children}
        revived: set[asyncio.Task[Child | None]] = set()
        overdue = asyncio.create_task(self._overdue.wait())
        look = asyncio.create_task(self._look_after_ranks())
        try:
            while ends or revived:
                done, _ = await asyncio.wait({*ends, *revived, overdue}, return_when=asyncio.FIRST_COMPLETED)
                for back in [task for task in revived if task in done]:
                    revived.remove(back)
                    if child := back.result():
                        self.adopt(child)
                        ends[asyncio.create_task(child.wait())] = child
                ended = [ends.pop(task) for task in list(ends) if task in done]
                lost = [child for child in ended if _is_lost(child)]
                revived |= {asyncio.create_task(self._revive(child)) for child in lost}
                code = self._judge([child for child in ended if child not in lost])
                if overdue in done:
                    code = self._judge_overdue()
                if code is not None:
                    await self._end_all()
                    return code
            return EXIT_DONE
        finally:
            for task in (*ends, *revived, overdue, look):
                task.cancel()

    async def _revive(self, child: Child) -> Child | None:
        """Start a lost rank again, also while the leader drains, which may wait for it; None if all is about to end."""
        self._children.remove(child)
        if self._is_ending:
            self._say(child.describe_end())
            return None
        pause_s = 0.0 if child.returncode == EXIT_AGAIN else self._revivals.pause_s(child.name)
        again = f"starting it again in {pause_s:g} s" if pause_s else "starting it again"
        ended = f"{child.name} has made room" if child.returncode == EXIT_AGAIN else child.describe_end()
        self._say(f"{ended}; {again}")
        await asyncio.sleep(pause_s)
        if self._is_ending:
            return None
        return await self._start(replace(child.spec, life=child.spec.life + 1))

    @property
    def _is_ending(self) -> bool:
        """Whether the leader has ended, or may end unseen since it is not here."""
        leader = next((child for child in self._children if child.spec.role == "leader"), None)
        return self._asked_at_s is not None if leader is None else leader.has_ended

    async def _look_after_ranks(self) -> None:
        """Kill ranks that hang: then they are lost, and started again."""
        while True:
            await asyncio.sleep(self._limits.look_s)
            for child in self._living():
                if child.spec.role == "rank" and (why := self._hangs(child)):
                    self._say(f"{child.name} {why}; killing it")
                    child.kill()

    def _hangs(self, child: Child) -> str | None:
        """Why a rank is of no more use. At the first start the leader says what the world still waits for."""
        silent_s, start_s = child.silent_s(), self._limits.start_s
        if silent_s > (self._limits.stopped_s if child.is_stopped else self._limits.silent_s):
            return f"has not answered for {silent_s:.1f} s"
        if child.spec.life > 0 and not child.beats and child.age_s > start_s:
            return f"has not come back within {start_s:g} s (service.start_s)"
        return None

    def _judge(self, ended: list[Child]) -> int | None:
        """The exit code if these ends mean that all must end now; None to go on waiting."""
        lost = [child for child in ended if not child.ended_in_order and not self._leader_will_tell(child)]
        for child in lost:
            self._say(f"{child.describe_end()}; ending the others")
        if lost:  # a child that found the user's input bad has said so itself
            return max(
                EXIT_BAD_INPUT if child.returncode == EXIT_BAD_INPUT else EXIT_FAILED for child in lost
            )
        if any(child.ended_by_our_signal for child in ended):
            return EXIT_DONE  # it was still starting: it has told nobody to stop
        if any(child.spec.role == "leader" for child in ended):
            self._end_newcomers()
        if ended:
            self._limit_to(self._limits.grace_s)
        return None

    def _leader_will_tell(self, child: Child) -> bool:
        """Whether what this end means is for the leader's own end to say: a rank that came back just as the leader was
        ending has missed its word, and found it gone."""
        return child.returncode == EXIT_LEADER_GONE and self._has_leader()

    def _end_newcomers(self) -> None:
        """A rank that was about to come back has missed the leader's word to end."""
        for child in self._living():
            if child.spec.life > 0 and not child.has_joined:
                child.terminate()

    def _judge_overdue(self) -> int:
        names = ", ".join(child.name for child in self._living())
        self._say(f"{names} did not end in time; ending now (service.drain_s is {self._limits.drain_s:g})")
        return EXIT_FAILED

    async def _end_all(self) -> None:
        """SIGTERM to what lives; `run` kills the rest."""
        for child in self._living():
            child.terminate()
        await wait_all(self._living(), timeout_s=self._limits.terminate_s)

    # -- signals -------------------------------------------------------------------------------------------

    def _hear(self, number: signal.Signals) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._asked_at_s is None:
            self._asked_at_s = now_s
            self._limit_to(self._limits.close_s)
            for child in self._children:
                self._ask_to_end(child)
        elif number == signal.SIGINT and now_s - self._asked_at_s > SAME_CTRL_C_S:
            self._hurry.set()

    def _ask_to_end(self, child: Child) -> None:
        """The leader drains and then stops the ranks; a rank that its word cannot reach yet ends at once."""
        if child.spec.role == "leader":
            self._say(f"draining, at most {self._limits.drain_s:g} s; a second SIGINT ends at once")
            child.terminate()
        elif not self._has_leader() and not child.has_joined:
            child.terminate()

    def _has_leader(self) -> bool:
        return any(child.spec.role == "leader" for child in self._children)

    def _living(self) -> list[Child]:
        return [child for child in self._children if not child.has_ended]

    def _limit_to(self, seconds: float) -> None:
        """Set the time by which all must have ended; an earlier one stays."""
        loop = asyncio.get_running_loop()
        if self._limit is None or loop.time() + seconds < self._limit.when():
            if self._limit is not None:
                self._limit.cancel()
            self._limit = loop.call_later(seconds, self._overdue.set)


def _is_lost(child: Child) -> bool:
    """A rank that was lost in service, also while it came back; not one that ended before the world had formed, or
    since the leader did. What is wrong in a stage file that has changed meanwhile ends no service that runs."""
    comes_back = child.spec.life > 0
    final = (EXIT_DONE, EXIT_LEADER_GONE) if comes_back else (EXIT_DONE, EXIT_LEADER_GONE, EXIT_BAD_INPUT)
    return child.spec.role == "rank" and (child.has_joined or comes_back) and child.returncode not in final


def _say_on_stderr(sentence: str) -> None:
    print(f"epe: {sentence}", file=sys.stderr, flush=True)
