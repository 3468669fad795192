"""What the server asks of the engine behind it; the desk of the leader is one."""

from __future__ import annotations

from typing import Protocol

from epe.jobs.engine import Engine as Draws
from epe.messages import Status


class Engine(Draws, Protocol):
    """Takes requests and knows how it fares.

    Where the caller is cancelled while it waits in `submit`, the request is cancelled too.
    """

    async def status(self) -> Status:
        """The state of the service; raises `Gone` where nobody is left to ask."""
