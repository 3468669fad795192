"""The child's end of the life-line to its parent: whoever holds it ends when the parent is gone.

The kernel kills a child of a dead parent too (trampoline.py), on Linux; the life-line works everywhere.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress

JOINED = b"j"
BEAT = b"."
PARENT_GONE = 3


class Lifeline:
    """Owns the descriptor `ChildSpec.lifeline_fd`."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # processes that the child starts must not hold the line
        self._line = socket.socket(fileno=fd)

    def watch(self) -> None:
        """From now on end this process, and its process group if it leads one, when the parent is gone."""
        threading.Thread(target=self._hold, name="lifeline", daemon=True).start()

    def tell_joined(self) -> None:
        """Tell the parent that the leader's word reaches this rank from now on, or, by the leader, that it serves.

        A parent without the leader that is asked to end waits for that word; before, it ends its rank itself.
        """
        self._line.send(JOINED)

    def beat(self) -> None:
        """Tell the parent that the event loop turns; from the first beat on it wants to hear them."""
        # A parent that is stopped does not listen, and must not stop its children; of one that is gone `_hold` hears.
        with suppress(OSError):
            self._line.send(BEAT, socket.MSG_DONTWAIT)

    def _hold(self) -> None:
        with suppress(ConnectionError):  # it had not heard all when it ended
            while self._line.recv(64):
                pass  # a parent says nothing; only the end counts
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(PARENT_GONE)
