"""What jobs ask of the engine that draws them; the desk of the leader is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from epe.messages import Accepted, Account, Again, Progress, Request
from epe.transport.link import Parcel


class Result(Protocol):
    """A finished request with its file."""

    @property
    def data(self) -> bytes | None: ...

    @property
    def media_type(self) -> str: ...

    @property
    def account(self) -> Account: ...


class Handle(Protocol):
    """One accepted request."""

    @property
    def accepted(self) -> Accepted: ...

    async def result(self) -> Result:
        """Wait for its one end; raises the `EpeError` that fits where that is no picture."""

    def cancel(self) -> None:
        """End it at the next step boundary; of no effect once it has ended."""


class Engine(Protocol):
    """Takes requests, those of earlier lives again."""

    async def submit(
        self,
        request: Request,
        *,
        watcher: Callable[[Progress], None] | None = None,
        again: Again | None = None,
        state: Parcel | None = None,
    ) -> Handle:
        """Hand a request in; raises `Refused` or `BadRequest`. `state` is the `Checkpoint` at the step of `again`."""
