"""Keeps what was measured beyond the life of the service. Files are read and written elsewhere, never on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from epe.actors.core import Actor
from epe.actors.directory import Directory
from epe.planning.cost_set import CostSet

KEEPER = "keeper"

# What was kept under a fingerprint, or None: nothing, or nothing that can be read.
Read = Callable[[str], CostSet | None]
Write = Callable[[CostSet], None]
RunElsewhere = Callable[..., Awaitable[Any]]


class LoadCosts(Struct, frozen=True, kw_only=True):
    """From the planner: what is known under this fingerprint? Answered by `CostsLoaded`."""

    fingerprint: str


class CostsLoaded(Struct, frozen=True, kw_only=True):
    """To the planner: what was kept (None: it must be measured)."""

    costs: CostSet | None


class KeepCosts(Struct, frozen=True, kw_only=True):
    """From the planner, or from whoever ends the service: keep this instead of what was kept before."""

    costs: CostSet


class Keeper(Actor):
    """One for each leader. `read` and `write` say themselves what they could not do; neither raises for a bad file."""

    inbox = 64

    def __init__(
        self,
        *,
        directory: Directory,
        read: Read,
        write: Write,
        run_elsewhere: RunElsewhere = asyncio.to_thread,
    ) -> None:
        self.directory = directory
        self.read = read
        self.write = write
        self.run_elsewhere = run_elsewhere

    async def receive(self, message: object) -> None:
        match message:
            case LoadCosts(fingerprint=fingerprint):
                costs = await self.run_elsewhere(self.read, fingerprint)
                self.ref(self.directory.planner).tell(CostsLoaded(costs=costs))
            case KeepCosts(costs=costs):
                await self.run_elsewhere(self.write, costs)
