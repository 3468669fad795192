"""An event loop whose clock jumps to the next timer as soon as nothing can run: hours pass in milliseconds.

For tests and the simulator. It knows no threads and no sockets, so a program that draws its
randomness from a seed does the same thing at the same virtual second in every run.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(RuntimeError):
    """Nothing can ever run: every task waits, and no timer is set. The message names the tasks."""


def run(main: Coroutine[Any, Any, T], *, limit_s: float = math.inf) -> T:
    """Run `main` on a new loop whose clock starts at 0; what it leaves behind is cancelled at its end.

    Raises `Deadlock` when `main` waits for something that cannot happen, or when the clock
    passes `limit_s` (a timer that is set again and again would keep the loop alive for ever).
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(limit_s=limit_s)) as runner:
        return runner.run(main)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while callbacks run, then jumps to the next timer."""

    def __init__(self, *, limit_s: float = math.inf) -> None:
        self._now_s = 0.0
        self._limit_s = limit_s
        self._home = threading.get_ident()
        super().__init__(_JumpingSelector(self._jump))
        # A timer is due within one resolution of its time. asyncio's own (1 ns) vanishes in a float
        # after a hundred days, and a due timer would then never fire.
        self._clock_resolution = 1e-7

    def time(self) -> float:
        return self._now_s

    def work(self, seconds: float) -> None:
        """Let time pass while a callback runs."""
        self._now_s += seconds

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        raise RuntimeError("virtual time has no threads; give the actor an executor that the loop drives")

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._home:
            raise RuntimeError("virtual time has no threads; a thread has called into its loop")
        return super().call_soon_threadsafe(callback, *args, context=context)

    def _jump(self, timeout_s: float | None) -> None:
        if timeout_s is None:
            raise Deadlock(f"nothing can ever run at {self._now_s:.6f} s; waiting: {self._waiting()}")
        if self._now_s > self._limit_s:
            raise Deadlock(f"still not at its end after {self._limit_s:g} s; waiting: {self._waiting()}")
        self._now_s += timeout_s

    def _waiting(self) -> str:
        return ", ".join(sorted(_describe(task) for task in asyncio.all_tasks(self))) or "no task"


class _JumpingSelector(selectors.DefaultSelector):
    """Where a loop would sleep for `timeout` seconds, this one calls `jump` and returns at once."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # The loop's own wake-up pipe is still read: a signal (Ctrl-C) arrives through it.
        events = super().select(0)
        if not events and (timeout is None or timeout > 0):
            self._jump(timeout)
        return events


def _describe(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    place = f"{frames[0].f_code.co_qualname}:{frames[0].f_lineno}" if frames else "not started"
    return f"{task.get_name()} ({place})"
