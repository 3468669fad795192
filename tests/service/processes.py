"""What /proc knows of a tree of processes: lives, processor time, memory, descriptors, listening sockets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_LISTENING = "0A"


@dataclass(frozen=True)
class Process:
    """A process, and when it was started, so that a later one of the same number is not taken for it."""

    pid: int
    started: int

    @property
    def is_alive(self) -> bool:
        """A zombie does not live: it only waits to be buried."""
        fields = _stat(self.pid)
        return fields is not None and int(fields[19]) == self.started and fields[0] not in "ZX"

    @property
    def cpu_s(self) -> float:
        """Processor time so far, in user and in system mode."""
        fields = _stat(self.pid)
        assert fields is not None
        return (int(fields[11]) + int(fields[12])) * _TICK_S

    @property
    def num_threads(self) -> int:
        return len(list((PROC / str(self.pid) / "task").iterdir()))

    @property
    def num_descriptors(self) -> int:
        return len(list((PROC / str(self.pid) / "fd").iterdir()))

    @property
    def resident_bytes(self) -> int:
        return int((PROC / str(self.pid) / "statm").read_text().split()[1]) * _PAGE_BYTES

    @property
    def rank(self) -> int | None:
        """The rank of a service that it is."""
        try:
            environment = (PROC / str(self.pid) / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return None
        found = re.search(rb'"rank":(\d+)', environment)
        return int(found[1]) if found else None

    @property
    def is_leader(self) -> bool:
        """Whether it is the leader of a service."""
        return b'"role":"leader"' in (PROC / str(self.pid) / "environ").read_bytes()

    @property
    def command(self) -> str:
        return (PROC / str(self.pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()


def tree(root: int) -> list[Process]:
    """The living process `root` and all of its living descendants."""
    children: dict[int, list[int]] = {}
    stats = {int(path.name): _stat(int(path.name)) for path in PROC.iterdir() if path.name.isdigit()}
    for pid, fields in stats.items():
        if fields is not None and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(pid)
    found, left = [], [root]
    while left:
        pid = left.pop()
        if fields := stats.get(pid):
            found.append(Process(pid, int(fields[19])))
        left += children.get(pid, [])
    return found


def listeners(processes: Iterable[Process] | None) -> set[str]:
    """The inodes of the listening TCP sockets that these processes hold; None: of all processes."""
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING:
                listening.add(fields[9])
    if processes is None:
        return listening
    return listening & {inode for process in processes for inode in _sockets(process.pid)}


def shared_memory(processes: Iterable[Process]) -> set[Path]:
    """The files in shared memory that these processes have mapped."""
    lines = [line for each in processes for line in _lines(PROC / str(each.pid) / "maps")]
    return {Path(line.split(maxsplit=5)[5]) for line in lines if " /dev/shm/" in line}


def _stat(pid: int) -> list[str] | None:
    """The fields of `stat` from the state on, or None when there is no such process."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _sockets(pid: int) -> set[str]:
    inodes = set()
    for descriptor in (PROC / str(pid) / "fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    return inodes
