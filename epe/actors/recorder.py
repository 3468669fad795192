"""Records requests as lines of a trace: the planner never waits for the disk, and a slow one loses lines aloud."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from epe.actors.core import Actor, Ref
from epe.errors import Overloaded
from epe.families import Family
from epe.messages import Request
from epe.planning.trace_line import TraceLine, encode_line, line_of
from epe.telemetry.log import get_logger

RECORDER = "recorder"

Write = Callable[[bytes], None]
RunElsewhere = Callable[..., Awaitable[Any]]

log = get_logger("planner")


class Flush(Struct, frozen=True, kw_only=True):
    """Write what is there."""


class Recorder(Actor):
    """One for each file that a leader records: requests as lines of a trace, or lines as they are. `write` may
    raise `OSError`; then these lines are lost, and it goes on."""

    inbox = 8192
    FLUSH_EVERY_S = 1.0
    MAX_LINES = 256

    def __init__(self, *, write: Write, run_elsewhere: RunElsewhere = asyncio.to_thread) -> None:
        self.write = write
        self.run_elsewhere = run_elsewhere
        self.lines: list[bytes] = []

    async def receive(self, message: object) -> None:
        match message:
            case TraceLine():
                await self._add(encode_line(message))
            case bytes():
                await self._add(message)
            case Flush():
                await self._flush()

    async def _add(self, lines: bytes) -> None:
        self.lines.append(lines)
        if len(self.lines) == 1:
            self.after(self.FLUSH_EVERY_S, Flush())
        if len(self.lines) >= self.MAX_LINES:
            await self._flush()

    async def _flush(self) -> None:
        lines, self.lines = self.lines, []
        if not lines:
            return
        try:
            await self.run_elsewhere(self.write, b"".join(lines))
        except OSError as error:
            log.error("trace.not_written", reason=str(error), lines=len(lines))


class Recording:
    """The planner's side: each request that a client hands in becomes a line, whether it is taken or not, since what
    was asked for is what another policy would be asked for too."""

    def __init__(self, family: Family, recorder: Ref) -> None:
        self.family = family
        self.recorder = recorder
        self.begin_s: float | None = None
        self.num_lost = 0

    def add(self, request: Request, *, now_s: float) -> None:
        """Record a request that has come now; the first one begins the trace."""
        if self.begin_s is None:
            self.begin_s = now_s
        arrival_s = round(now_s - self.begin_s, 6)
        conditions = self.family.num_conditions(request.guidance_scale)
        try:
            self.recorder.tell(line_of(request, arrival_s=arrival_s, conditions=conditions))
        except Overloaded:
            self.num_lost += 1
            # The 1st, 2nd, 4th, 8th, ...: a slow disk must not become a flood of lines.
            if self.num_lost & (self.num_lost - 1) == 0:
                log.warning("trace.lines_lost", lost=self.num_lost, reason="the disk is too slow")
