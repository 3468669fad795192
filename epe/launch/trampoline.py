"""Runs for a moment between a parent and its child: has the kernel kill the child when the parent dies.

Started by its path, without the package: `python -I -S trampoline.py PARENT_PID COMMAND...`. A process of its
own because code between fork and exec in a parent with threads can deadlock; the setting survives exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NOT_FOUND = 127


def main() -> None:
    """Become the command, bound to the parent's life."""
    parent_pid, command = int(sys.argv[1]), sys.argv[2:]
    die_with_parent()
    if os.getppid() != parent_pid:
        sys.exit("epe: the parent ended before its child began")  # too early for the kernel to tell us
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"epe: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(NOT_FOUND)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it is gone (only Linux can)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


if __name__ == "__main__":
    main()
