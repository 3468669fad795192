"""The child's end of the life-line to its parent: whoever holds it ends when the parent is gone.

The kernel kills a child of a dead parent too (trampoline.py), on Linux; the life-line works everywhere.
"""

from __future__ import annotations

import os
import signal
import threading

JOINED = b"j"
BEAT = b"."
PARENT_GONE = 3


class Lifeline:
    """Owns the descriptor `ChildSpec.lifeline_fd`."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # processes that the child starts must not hold the line
        self._fd = fd

    def watch(self) -> None:
        """From now on end this process, and its process group if it leads one, when the parent is gone."""
        threading.Thread(target=self._hold, name="lifeline", daemon=True).start()

    def tell_joined(self) -> None:
        """Tell the parent that the leader's word reaches this rank from now on.

        A parent without the leader that is asked to end waits for that word; before, it ends its rank itself.
        """
        os.write(self._fd, JOINED)

    def beat(self) -> None:
        """Tell the parent that the event loop turns; from the first beat on it wants to hear them."""
        os.write(self._fd, BEAT)

    def _hold(self) -> None:
        while os.read(self._fd, 64):
            pass  # a parent says nothing; only the end counts
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(PARENT_GONE)
