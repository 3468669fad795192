"""One child process: started in its own session, bound to the parent's life, watched to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from epe.errors import StartFailed
from epe.launch.lifeline import BEAT, JOINED
from epe.launch.spec import VARIABLE, ChildSpec, write_spec

TRAMPOLINE = Path(__file__).with_name("trampoline.py")


class Child:
    """A running leader or rank; in its own session, so that a terminal's Ctrl-C reaches only the parent."""

    def __init__(self, spec: ChildSpec, *, process: Process, lifeline: socket.socket) -> None:
        self.spec = spec
        self._process = process
        self._lifeline = lifeline
        self._was_terminated = False
        self._is_buried = False
        self._joined_s: float | None = None
        self._ended_s: float | None = None
        self._heard_s: float | None = None
        self._started_s = self._ran_s = time.monotonic()

    @classmethod
    async def start(cls, spec: ChildSpec, *, command: Sequence[str], env: Mapping[str, str]) -> Child:
        """Start `command` as the child that `spec` describes.

        Call it from the main thread: the kernel binds a child's life to the thread that started it.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        spec = replace(spec, lifeline_fd=theirs.fileno())
        with theirs:
            try:
                process = await create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(TRAMPOLINE), str(os.getpid())),
                    *command,
                    stdin=DEVNULL,
                    env={**env, VARIABLE: write_spec(spec)},
                    pass_fds=spec.fds,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise StartFailed(f"cannot start {spec.name}: {error.strerror}") from error
        return cls(spec, process=process, lifeline=ours)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """As of subprocess: None while it runs, negative when a signal ended it."""
        return self._process.returncode

    @property
    def has_ended(self) -> bool:
        return self.returncode is not None

    @property
    def ended_by_our_signal(self) -> bool:
        """It had no handler (yet) for the SIGTERM that we sent."""
        return self._was_terminated and self.returncode == -signal.SIGTERM

    @property
    def ended_in_order(self) -> bool:
        return self.returncode == 0 or self.ended_by_our_signal

    @property
    def has_joined(self) -> bool:
        """Whether it has said that the leader's word reaches it; of a leader, that it serves."""
        self._listen()
        return self._joined_s is not None

    @property
    def served_s(self) -> float:
        """How long it has lived since it had joined."""
        self._listen()
        until_s = time.monotonic() if self._ended_s is None else self._ended_s
        return 0.0 if self._joined_s is None else until_s - self._joined_s

    @property
    def beats(self) -> bool:
        """Whether it has said that its event loop turns, which it does once its model is loaded."""
        self._listen()
        return self._heard_s is not None

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started_s

    def silent_s(self) -> float:
        """How long its event loop has not turned. Of one that does not beat (yet), how long it has been seen stopped:
        a model may take minutes to load."""
        self._listen()
        if not self.is_stopped:
            self._ran_s = time.monotonic()
        since_s = self._ran_s if self._heard_s is None else self._heard_s
        return 0.0 if self.has_ended else time.monotonic() - since_s

    def excuse(self, slept_s: float) -> None:
        """Nobody listened for so long, and it may not have run either: what it did not say then does not count."""
        now_s = time.monotonic()
        self._ran_s = min(now_s, self._ran_s + slept_s)
        if self._heard_s is not None:
            self._heard_s = min(now_s, self._heard_s + slept_s)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it (Linux tells)."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
        except OSError:
            return False

    def _listen(self) -> None:
        """Take what it has said on the life-line."""
        with contextlib.suppress(BlockingIOError, ConnectionError, OSError):
            while said := self._lifeline.recv(4096):
                if JOINED in said and self._joined_s is None:
                    self._joined_s = time.monotonic()
                if BEAT in said:
                    self._heard_s = time.monotonic()

    async def wait(self) -> None:
        """Return when it has ended and nothing that it left behind in its process group lives."""
        await self._process.wait()
        if not self._is_buried:  # once: later its number may be another process's
            self._is_buried = True
            self._ended_s = time.monotonic()
            self._listen()
            self._kill_group()
            self._lifeline.close()

    def terminate(self) -> None:
        """Ask it to end."""
        if not self.has_ended:
            self._was_terminated = True
            self._process.terminate()

    def kill(self) -> None:
        """End it and its process group now."""
        if not self.has_ended:
            self._kill_group()

    def describe_end(self) -> str:
        """For example `rank 2 was ended by signal 9 (SIGKILL)`."""
        match self.returncode:
            case None:
                return f"{self.name} (pid {self.pid}) still runs"
            case code if code < 0:
                return f"{self.name} was ended by signal {-code} ({_signal_name(-code)})"
            case 0:
                return f"{self.name} ended"
            case code:
                return f"{self.name} ended with exit code {code}"

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "real-time signal"


async def wait_all(children: Sequence[Child], *, timeout_s: float) -> None:
    """Wait until all have ended, but not longer than `timeout_s`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(child.wait())
