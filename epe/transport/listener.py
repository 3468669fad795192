"""Whether this process still listens for peers that come.

torch's agent stops listening for good when a connection breaks before its first bytes: a peer that was killed while it
connected, or a scan of ports. Those that are connected notice nothing; a newcomer is refused. Only Linux can tell.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FDS = Path("/proc/self/fd")
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LISTENING = "0A"

# The sockets on which the agent of this process listens; empty where nobody can tell.
_listeners: frozenset[str] = frozenset()


def watch_listeners(start: Callable[[], Any]) -> None:
    """Call `start`, and remember on which sockets it has begun to listen."""
    global _listeners
    before = _listening()
    start()
    _listeners = frozenset(_listening() - before)


def still_listens() -> bool:
    """Whether what was begun then goes on."""
    return _listeners <= _sockets()


def forget_listeners() -> None:
    """The agent has left."""
    global _listeners
    _listeners = frozenset()


def _listening() -> set[str]:
    rows = (row.split() for table in _TABLES if table.exists() for row in table.read_text().splitlines()[1:])
    return {row[9] for row in rows if row[3] == _LISTENING} & _sockets()


def _sockets() -> set[str]:
    """The inodes of this process's sockets."""
    found = set()
    for descriptor in _FDS.iterdir() if _FDS.exists() else ():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:  # It was closed meanwhile.
            continue
        if target.startswith("socket:["):
            found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found
