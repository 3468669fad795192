"""What the server asks of the engine behind it; the desk of the leader is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from epe.messages import Accepted, Account, Event, Live, Predicted, Preview, Request, Status

PreviewWatcher = Callable[[Preview], None]


class Result(Protocol):
    """A finished request: the file in `data`, or the array in `pixels` where raw output was asked for."""

    @property
    def data(self) -> bytes | None: ...

    @property
    def pixels(self) -> NDArray[np.uint8] | None: ...

    @property
    def media_type(self) -> str: ...

    @property
    def account(self) -> Account: ...


class Handle(Protocol):
    """One accepted request."""

    @property
    def request_id(self) -> str: ...

    @property
    def accepted(self) -> Accepted: ...

    async def result(self) -> Result:
        """Wait for its one end; raises the `EpeError` that fits where that is no picture."""

    def cancel(self) -> None:
        """End it at the next step boundary; of no effect once it has ended."""


class Engine(Protocol):
    """Takes requests and knows how it fares."""

    async def submit(
        self, request: Request, *, num_previews: int = 0, preview_watcher: PreviewWatcher | None = None
    ) -> Handle:
        """Hand a request in; raises `Refused` or `BadRequest`. `preview_watcher` is called with up to `num_previews`
        previews.

        Where the caller is cancelled while it waits here, the request is cancelled too.
        """

    async def status(self) -> Status:
        """The state of the service; raises `Gone` where nobody is left to ask."""

    async def predict(self, requests: Sequence[Request]) -> Predicted:
        """What these requests of one size would cost, and when they would end, if they came now; raises as
        `submit` does."""

    def requests(self) -> Iterable[Live]:
        """The requests that were taken and have not ended, in the order in which they came."""

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Have `listener` called with all that goes on; it does not raise, and takes no time."""
