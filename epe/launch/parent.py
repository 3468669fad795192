"""Watches the children of one parent from their start to their end, and decides the parent's exit code.

A rank that is lost is started again; a leader that is lost, with all ranks, where all of them are this parent's. The
order of an end, as the user notices it: a first SIGINT or SIGTERM lets the
leader drain and stop the ranks; what has not ended within the limit is terminated, then killed. A second SIGINT kills
at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from epe.launch.child import Child, wait_all
from epe.launch.limits import Limits, why_it_hangs
from epe.launch.revivals import Revivals
from epe.launch.spec import ChildSpec
from epe.launch.succession import Succession

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


class Parent:
    """Owns its children; `await run()` returns the exit code when none of them lives.

    `say` tells the user one sentence. `let_go` is called when nobody will need the sockets of the service any more: a
    port that the leader closes must be closed, or clients would wait at a deaf one.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        start: Callable[[ChildSpec], Awaitable[Child]],
        say: Callable[[str], None],
        let_go: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits = limits
        self._start = start
        self._let_go = let_go
        self._revivals = Revivals()
        self._reviving: set[asyncio.Task[Child | None]] = set()
        self._succession = Succession((), self._revivals)
        self._say = say
        self._children: list[Child] = []
        self._asked_at_s: float | None = None
        self._asked = asyncio.Event()
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
        orderly = asyncio.create_task(self._reign())
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

    # -- one world after the other -------------------------------------------------------------------------

    async def _reign(self) -> int:
        """Watch a world, and the next one where its leader was lost."""
        self._succession = Succession([child.spec for child in self._children], self._revivals)
        if not self._succession.is_possible:
            self._let_go()
        while (code := await self._watch()) is None:
            if (code := await self._begin_anew()) is not None:
                break
        return code

    async def _begin_anew(self) -> int | None:
        """Start the leader and all ranks again: a rank that has lost its leader cannot join another one. The exit code
        if that shall not be."""
        leader = next(child for child in self._children if child.spec.role == "leader")
        if (pause_s := self._succession.pause_s(leader)) is None:
            times = self._succession.num_in_a_row(leader)
            self._say(
                f"{leader.describe_end()}, the {times}th time soon after it had begun to serve; giving up"
            )
            return EXIT_FAILED
        again = f"starting all again in {pause_s:g} s" if pause_s else "starting all again"
        self._say(f"{leader.describe_end()}; {again}")
        await self.kill_all()
        self._children.clear()
        self._wait_for_ever()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._asked.wait(), pause_s)
        if self._asked.is_set():
            return EXIT_DONE
        for spec in self._succession.begin():
            self.adopt(await self._start(spec))
        return None

    # -- the orderly way -----------------------------------------------------------------------------------

    async def _watch(self) -> int | None:
        """The exit code of a world that has ended, or must; None if its leader was lost."""
        ends = {asyncio.create_task(child.wait()): child for child in self._children}
        overdue = asyncio.create_task(self._overdue.wait())
        look = asyncio.create_task(self._look_after_ranks())
        try:
            while ends or self._reviving:
                waiting = {*ends, *self._reviving, overdue}
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                ends |= {asyncio.create_task(child.wait()): child for child in self._take_revived(done)}
                ended = [ends.pop(task) for task in list(ends) if task in done]
                if any(self._is_lost_leader(child) for child in ended):
                    return None
                lost = [child for child in ended if _is_lost(child)]
                for child in lost:
                    self._children.remove(child)
                    self._reviving.add(asyncio.create_task(self._revive(child)))
                code = self._judge([child for child in ended if child not in lost])
                if overdue in done:
                    code = self._judge_overdue()
                if code is not None:
                    await self._end_all()
                    return code
            return EXIT_DONE
        finally:
            for task in (*ends, overdue, look):
                task.cancel()

    def _take_revived(self, done: set[asyncio.Task[Any]]) -> Iterator[Child]:
        for back in self._reviving & done:
            self._reviving.remove(back)
            if child := back.result():
                self.adopt(child)
                yield child

    async def _revive(self, child: Child) -> Child | None:
        """Start a lost rank again, also while the leader drains, which may wait for it; None if all is about to end."""
        if self._is_ending:
            self._say(child.describe_end())
            return None
        made_room = child.returncode == EXIT_AGAIN
        pause_s = 0.0 if made_room else self._revivals.pause_s(child.name, lived_s=child.age_s)
        again = f"starting it again in {pause_s:g} s" if pause_s else "starting it again"
        ended = f"{child.name} has made room" if made_room else child.describe_end()
        self._say(f"{ended}; {again}")
        await asyncio.sleep(pause_s)
        if self._is_ending or child.spec.epoch != self._succession.epoch:
            return None
        back = await self._start(replace(child.spec, life=child.spec.life + 1))
        if back.spec.epoch != self._succession.epoch:  # its world ended meanwhile
            back.kill()
            await back.wait()
            return None
        return back

    @property
    def _is_ending(self) -> bool:
        """Whether the leader has ended, or may end unseen since it is not here."""
        leader = next((child for child in self._children if child.spec.role == "leader"), None)
        return self._asked_at_s is not None if leader is None else leader.has_ended

    async def _look_after_ranks(self) -> None:
        """Kill children that hang: then they are lost, and started again. A machine or container that was paused has
        paused them all."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + self._limits.look_s
            await asyncio.sleep(self._limits.look_s)
            slept_s = max(0.0, loop.time() - due_s)
            for child in self._living():
                child.excuse(slept_s)
                if why := why_it_hangs(child, self._limits):
                    self._say(f"{child.name} {why}; killing it")
                    child.kill()

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

    def _is_lost_leader(self, child: Child) -> bool:
        """A leader that was lost in service, or on its way back to it, and may have a successor."""
        return (
            child.spec.role == "leader"
            and (child.has_joined or child.spec.epoch > 0)
            and child.returncode not in (EXIT_DONE, EXIT_BAD_INPUT)
            and self._asked_at_s is None
            and self._succession.is_possible
        )

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
            self._asked.set()
            self._let_go()
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

    def _wait_for_ever(self) -> None:
        """Until something else ends, there is no limit."""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        self._overdue.clear()


def _is_lost(child: Child) -> bool:
    """A rank that was lost in service, also while it came back; not one that ended before the world had formed, or
    since the leader did. What is wrong in a stage file that has changed meanwhile ends no service that runs."""
    comes_back = child.spec.life > 0
    final = (EXIT_DONE, EXIT_LEADER_GONE) if comes_back else (EXIT_DONE, EXIT_LEADER_GONE, EXIT_BAD_INPUT)
    return child.spec.role == "rank" and (child.has_joined or comes_back) and child.returncode not in final
