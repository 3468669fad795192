"""Writes lines to a descriptor on a thread of its own, so that whoever speaks never waits for a reader, nor fails.

A terminal that is held, a pipe that nobody reads and a full disk cost lines, which are counted and told later.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

# Some megabytes at most, but for tracebacks.
MOST_LINES = 4096
# How long a process that ends waits for whoever reads its lines.
LAST_WORDS_S = 1.0


class Scribe:
    """What a logger takes for a stream. `tell_lost` makes the line, without its end, that says how many were lost."""

    def __init__(self, descriptor: int, *, tell_lost: Callable[[int], str], most: int = MOST_LINES) -> None:
        self._descriptor = descriptor
        self._tell_lost = tell_lost
        self._most = most
        self._lines: deque[str] = deque()
        self._changed = threading.Condition()
        self._num_lost = 0
        self._is_amid_a_line = False
        threading.Thread(target=self._work, name="scribe", daemon=True).start()

    def write(self, line: str) -> None:
        """Have a whole line written, or lost when too many wait."""
        with self._changed:
            if len(self._lines) == self._most:
                self._num_lost += 1
                return
            self._lines.append(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Nothing: the thread writes as soon as it can."""

    def drain(self, *, within_s: float = LAST_WORDS_S) -> None:
        """Wait for what was said so far, but not for long: a process that ends does so."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, within_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line, num_lost = self._lines[0], self._num_lost
            # One write a line: processes share the stream, and halves of lines must not mix.
            was_told = num_lost > 0 and self._put(f"{self._tell_lost(num_lost)}\n")
            was_written = self._put(line)
            with self._changed:
                self._lines.popleft()
                self._num_lost += (not was_written) - (num_lost if was_told else 0)
                self._changed.notify_all()

    def _put(self, line: str) -> bool:
        """Whether all of it was taken; what follows half a line begins on the next."""
        data = (b"\n" if self._is_amid_a_line else b"") + line.encode(errors="backslashreplace")
        try:
            while data:
                num_written = self._write_some(data)
                self._is_amid_a_line = num_written < len(data)
                data = data[num_written:]
        except OSError:
            return False
        return True

    def _write_some(self, data: bytes) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:  # whoever shares the stream has made it so
            select.select((), (self._descriptor,), ())
            return 0
