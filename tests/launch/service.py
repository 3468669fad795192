"""Starts parents with stand-in children for the tests, and knows which of their processes live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from epe.launch.limits import Limits
from epe.launch.topology import ServeSettings

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
QUICK = Limits(drain_s=20, grace_s=0.5, terminate_s=0.5)


class Service:
    """One parent, or one parent a rank under a launcher; all pids that ever belonged to it."""

    def __init__(self, folder: Path, *, num_ranks: int = 2) -> None:
        self.folder = folder
        self.num_ranks = num_ranks
        self.parents: list[subprocess.Popen[str]] = []

    @property
    def names(self) -> list[str]:
        return ["leader", *(f"rank {rank}" for rank in range(self.num_ranks))]

    def start(
        self,
        *behaviours: str,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        limits: Limits = QUICK,
        launcher: tuple[str, ...] = (),
    ) -> subprocess.Popen[str]:
        settings = ServeSettings(
            stage_path="stage.yaml",
            gpu=tuple(range(self.num_ranks)),
            host="127.0.0.1",
            port=port,
            drain_s=limits.drain_s,
        )
        child = [sys.executable, str(HERE / "stand_in_child.py"), str(self.folder), *behaviours]
        structs = [msgspec.json.encode(struct).decode() for struct in (settings, limits)]
        parent = subprocess.Popen(
            [*launcher, sys.executable, str(HERE / "stand_in_parent.py"), *structs, *child],
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.parents.append(parent)
        return parent

    def wait_until_ready(self, *, but: tuple[str, ...] = ()) -> None:
        """All children have joined, those in `but` have started."""
        wanted = [self.folder / f"{name}.{'pid' if name in but else 'ready'}" for name in self.names]
        eventually(lambda: all(path.exists() for path in wanted), within_s=15)

    def pid(self, name: str, *, kind: str = "pid") -> int:
        return int((self.folder / f"{name}.{kind}").read_text())

    def children(self) -> list[int]:
        return [
            int(path.read_text()) for kind in ("pid", "grandchild") for path in self.folder.glob(f"*.{kind}")
        ]

    def assert_no_child_lives(self, *, within_s: float = 0) -> None:
        assert self.children(), "no child ever started: the test would say nothing"
        eventually(lambda: not any(map(is_alive, self.children())), within_s=within_s)

    def close(self) -> None:
        for parent in self.parents:
            parent.kill()
        for pid in filter(is_alive, self.children()):
            os.kill(pid, signal.SIGKILL)  # before waiting for the end of the output that they share
        for parent in self.parents:
            parent.communicate(timeout=10)


def finish(parent: subprocess.Popen[str], *, within_s: float = 10) -> tuple[int, str]:
    """The parent's exit code and what it said on stderr."""
    _, said = parent.communicate(timeout=within_s)
    return parent.returncode, said


def is_alive(pid: int) -> bool:
    """A zombie does not live: it only waits to be buried, perhaps by an init process that never does."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def eventually(holds: Callable[[], bool], *, within_s: float) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.02)
