"""A pool of processes for tests that need several ranks: each imports torch once and then runs functions.

    world = World(4)
    world.run("tests.transport.on_ranks:gather_everything", 3)   # one result a rank, by rank
    world.run(gather_everything, 3)                              # the same, for a function of a module

The function gets a `RankContext` and the arguments; what it tells meanwhile is heard at once. A rank that raises makes
`run` raise `RankFailed` with its traceback; one that dies or hangs is killed with the others and all are started again
for the next run.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What takes a rank longest to import.
ADAPTERS = tuple(
    f"epe.models.{name}.adapter" for name in ("flux1", "flux2_klein", "qwen_image", "wan", "zimage")
)


class RankFailed(AssertionError):
    """A function of `World.run` did not end well on some rank."""


def _unheard(told: Any) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class _Told:
    """Comes through the pipe before the outcome does."""

    told: Any


@dataclass
class RankContext:
    """What a function on a rank has: its place, a store on loopback that is empty for each run, a
    dictionary that lives as long as the process, and whom to tell what shall be known before it ends."""

    rank: int
    world_size: int
    store: Any
    kept: dict[str, Any] = field(default_factory=dict)
    tell: Callable[[Any], None] = _unheard

    def groups(self, **options: Any) -> Any:
        """The lanes of this rank over gloo; close them at the end."""
        from epe.transport.groups import Groups

        return Groups(self.store, epoch=0, rank=self.rank, **{"timeout_s": 30.0, **options})


class World:
    """`num_ranks` processes, started at the first run. Once a rank has failed the others, which may wait for it, have
    `grace_s` to end. They are forked from one process that has imported `preload`, or else are new ones, as CUDA wants
    them."""

    def __init__(self, num_ranks: int, *, grace_s: float = 5.0, preload: Sequence[str] = ()) -> None:
        self.num_ranks = num_ranks
        self.grace_s = grace_s
        self._processes: Any = multiprocessing.get_context("forkserver" if preload else "spawn")
        if preload:
            self._processes.set_forkserver_preload(list(preload))
        self._ranks: list[tuple[Any, Connection]] = []
        self._num_runs = 0

    def run(
        self,
        function: str | Callable[..., Any],
        *args: Any,
        timeout_s: float = 120.0,
        dying: tuple[int, ...] = (),
        heard: Callable[[int, Any], None] = lambda rank, told: None,
    ) -> list[Any]:
        """Run `function` on every rank and give the results by rank; ranks in `dying` are to end their process
        (their result is None). `heard` gets what a rank tells, as it comes."""
        name = function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
        if not self._ranks:
            self._start()
        self._num_runs += 1
        for _, pipe in self._ranks:
            pipe.send((name, args, self._num_runs))
        outcomes = self._collect(time.monotonic() + timeout_s, dying, heard)
        if any(rank not in outcomes or outcomes[rank] is None for rank in range(self.num_ranks)):
            self.close()
        return self._results(name, outcomes, dying)

    def close(self) -> None:
        """Kill the processes."""
        for process, pipe in self._ranks:
            process.kill()
            process.join()
            pipe.close()
        self._ranks = []

    def _start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank in range(self.num_ranks):
            ours, theirs = self._processes.Pipe()
            process = self._processes.Process(
                target=_serve, args=(theirs, rank, self.num_ranks, port), daemon=True
            )
            process.start()
            theirs.close()
            self._ranks.append((process, ours))

    def _collect(
        self, end_s: float, dying: tuple[int, ...], heard: Callable[[int, Any], None]
    ) -> dict[int, tuple[bool, Any] | None]:
        """The outcome of each rank that has one in time; None where the process has died."""
        outcomes: dict[int, tuple[bool, Any] | None] = {}
        pipes = {pipe: rank for rank, (_, pipe) in enumerate(self._ranks)}
        while pipes and (left_s := end_s - time.monotonic()) > 0:
            for pipe in wait(list(pipes), timeout=left_s):
                assert isinstance(pipe, Connection)
                outcome = _receive(pipe)
                if isinstance(outcome, _Told):
                    heard(pipes[pipe], outcome.told)
                    continue
                rank = pipes.pop(pipe)
                outcomes[rank] = outcome
                if rank not in dying and (outcome is None or not outcome[0]):
                    end_s = min(end_s, time.monotonic() + self.grace_s)
        for rank in pipes.values():
            pid = self._ranks[rank][0].pid
            assert pid is not None
            os.kill(pid, signal.SIGUSR1)  # it writes to stderr where it hangs
        time.sleep(0.3 if pipes else 0)
        return outcomes

    def _results(
        self, name: str, outcomes: dict[int, tuple[bool, Any] | None], dying: tuple[int, ...]
    ) -> list[Any]:
        results: list[Any] = [None] * self.num_ranks
        failures = []
        for rank in range(self.num_ranks):
            match outcomes.get(rank, "hangs"):
                case (True, result):
                    results[rank] = result
                case (False, trace):
                    failures.append(f"rank {rank} raised\n{trace}")
                case None if rank not in dying:
                    failures.append(f"rank {rank} died")
                case "hangs":
                    failures.append(f"rank {rank} did not end in time; stderr shows where it was")
        if failures:
            raise RankFailed(f"{name}: " + "\n".join(failures))
        return results


def _receive(pipe: Connection) -> tuple[bool, Any] | _Told | None:
    try:
        outcome: tuple[bool, Any] | _Told = pipe.recv()
    except (EOFError, ConnectionResetError):
        return None
    return outcome


def _serve(pipe: Connection, rank: int, num_ranks: int, port: int) -> None:
    """The life of a rank: run what comes through the pipe, until it is closed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no orphan outlives the tests
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.environ.update(TORCH_CPP_LOG_LEVEL="ERROR", OMP_NUM_THREADS="1")
    sys.path.insert(0, str(ROOT))
    store, kept = _open_store(rank, port), {}
    while True:
        try:
            name, args, number = pipe.recv()
        except EOFError:
            return
        context = _context(rank, num_ranks, store, number, kept)
        context.tell = lambda told: pipe.send(_Told(told))
        try:
            outcome = (True, _find(name)(context, *args))
        except BaseException:
            outcome = (False, traceback.format_exc())
        _send(pipe, outcome)


def _send(pipe: Connection, outcome: tuple[bool, Any]) -> None:
    try:
        pipe.send(outcome)
    except Exception:
        # The result cannot be pickled, and the test is to hear of it.
        pipe.send((False, traceback.format_exc()))


def _open_store(rank: int, port: int) -> Any:
    import torch

    from epe.transport.store import host_store, join_store

    torch.set_num_threads(1)
    return host_store(port=port) if rank == 0 else join_store("127.0.0.1", port, timeout_s=60.0)


def _context(rank: int, num_ranks: int, store: Any, number: int, kept: dict[str, Any]) -> RankContext:
    from torch.distributed import PrefixStore

    return RankContext(rank, num_ranks, PrefixStore(f"run{number}", store), kept)


def _find(name: str) -> Callable[..., Any]:
    module, _, qualname = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]
