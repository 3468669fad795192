"""A machine or container that is paused (`docker pause`, a saved virtual machine) pauses parent and children."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from epe.launch.child import Child
from epe.launch.lifeline import BEAT
from epe.launch.limits import Limits
from epe.launch.parent import Parent
from epe.launch.spec import ChildSpec

LIMITS = Limits(drain_s=5, silent_s=0.6, look_s=0.01, terminate_s=5)
SPEC = ChildSpec(
    role="rank",
    rank=0,
    world_size=2,
    stage_path="stage.yaml",
    host="127.0.0.1",
    port=0,
    store_host="127.0.0.1",
    store_port=1,
)


def pause(seconds: float) -> None:
    """Nobody runs meanwhile: the tests' loop is the parent's and, for them, the rank's."""
    time.sleep(seconds)


class Watched:
    """A parent in this loop and a rank that beats as often as it is told to."""

    def __init__(self, child: Child, line: socket.socket) -> None:
        self.child = child
        self.said: list[str] = []
        self._line = line
        self._parent = Parent(limits=LIMITS, start=self._start, say=self.said.append)
        self._parent.adopt(child)
        self.running = asyncio.create_task(self._parent.run())

    async def _start(self, spec: ChildSpec) -> Child:
        raise AssertionError("no other one is wanted")

    async def beat(self) -> None:
        """Return when the parent has heard it."""
        self._line.send(BEAT)
        await asyncio.sleep(5 * LIMITS.look_s)
        assert self.child.beats


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    process = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    watched = Watched(Child(SPEC, process=process, lifeline=ours), theirs)
    yield watched
    watched.running.cancel()
    await asyncio.gather(watched.running, return_exceptions=True)
    theirs.close()


async def test_ranks_of_a_service_that_was_paused_for_long_are_not_taken_for_hung(watched: Watched) -> None:
    await watched.beat()
    pause(2 * LIMITS.silent_s)
    await asyncio.sleep(3 * LIMITS.look_s)
    await watched.beat()
    assert not watched.child.has_ended, watched.said


async def test_a_rank_that_hangs_after_a_pause_is_found(watched: Watched) -> None:
    await watched.beat()
    pause(2 * LIMITS.silent_s)
    async with asyncio.timeout(10):
        await watched.running
    assert "rank 0 has not answered for 0." in watched.said[0]
    assert watched.child.has_ended
