"""What the server asks of the engine behind it; the desk of the leader is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from epe.jobs.engine import Engine as Draws
from epe.jobs.engine import Handle
from epe.messages import Action, Again, Event, Live, Predicted, Preview, Progress, Request, Status
from epe.transport.link import Parcel

PreviewWatcher = Callable[[Preview], None]


class Engine(Draws, Protocol):
    """Takes requests and knows how it fares.

    Where the caller is cancelled while it waits in `submit`, the request is cancelled too.
    """

    async def submit(
        self,
        request: Request,
        *,
        watcher: Callable[[Progress], None] | None = None,
        again: Again | None = None,
        state: Parcel | None = None,
        num_previews: int = 0,
        preview_watcher: PreviewWatcher | None = None,
    ) -> Handle:
        """As jobs hand requests in; `preview_watcher` is called with up to `num_previews` previews."""

    async def status(self) -> Status:
        """The state of the service; raises `Gone` where nobody is left to ask."""

    async def operate(self, action: Action, rank: int) -> Status:
        """Cordon, drain or readmit a rank; raises `UnknownRank`, or `Conflict` where that cannot be now."""

    async def predict(self, requests: Sequence[Request]) -> Predicted:
        """What these requests of one size would cost, and when they would end, if they came now; raises as
        `submit` does."""

    def requests(self) -> Iterable[Live]:
        """The requests that were taken and have not ended, in the order in which they came."""

    @property
    def num_requests(self) -> int:
        """How many these are."""

    def find(self, request_id: str) -> Live | None:
        """One of these."""

    def preview_of(self, request_id: str) -> bytes | None:
        """The last preview of a video that is drawn: its first frame, as WebP; None where there is none yet."""

    async def end(self, request_id: str) -> None:
        """Cancel one of these, whoever has submitted it, and wait for its end; without effect if it has ended."""

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Have `listener` called with all that goes on; it does not raise, and takes no time."""
