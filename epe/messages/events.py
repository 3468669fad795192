"""What goes on in a service, for whoever watches it, and what a request would cost if it came."""

from __future__ import annotations

from msgspec import Struct

from epe.messages.leases import Stage
from epe.messages.reports import Failure
from epe.messages.requests import Request
from epe.messages.service import Accepted, Ended, Progress


class LaneAtWork(Struct, frozen=True, kw_only=True):
    """A lane and what all of its ranks are at."""

    ranks: tuple[int, ...]
    request_id: str
    stage: Stage


class LayoutChanged(Struct, frozen=True, kw_only=True, tag=True):
    """From now on these lanes are at work, and no others."""

    lanes: tuple[LaneAtWork, ...]


class Admitted(Struct, frozen=True, kw_only=True):
    """A request was taken; `arrived_at` is in seconds of Unix time."""

    request: Request
    accepted: Accepted
    arrived_at: float


class Turned(Struct, frozen=True, kw_only=True):
    """A request was turned away."""

    request: Request
    failure: Failure


class Departed(Struct, frozen=True, kw_only=True):
    """A request that was taken has reached its one end."""

    request: Request
    accepted: Accepted
    arrived_at: float
    ended: Ended


class Live(Struct, frozen=True, kw_only=True):
    """A request that was taken and has not ended; without `progress` it waits."""

    request: Request
    accepted: Accepted
    arrived_at: float
    progress: Progress | None = None


Event = Admitted | Turned | Progress | LayoutChanged | Departed


class Predict(Struct, frozen=True, kw_only=True, tag=True):
    """Ask: if these requests came now, one after the other, when would they end? Answered with `Predicted`, or with
    `Rejected` where they would not be taken."""

    requests: tuple[Request, ...]


class WidthCost(Struct, frozen=True, kw_only=True):
    """What all steps of a request would take on a lane of this width, and on all of its ranks together."""

    width: int
    denoise_s: float
    rank_s: float


class Predicted(Struct, frozen=True, kw_only=True, tag=True):
    """The finish of each request as it would be promised, and what one of them costs, in seconds."""

    accepted: tuple[Accepted, ...]
    encode_s: float
    decode_s: float
    finish_s: float
    widths: tuple[WidthCost, ...]


class Palette(Struct, frozen=True, kw_only=True, tag=True):
    """What a cell of latents looks like: weights of each of its values for red, green and blue from 0 to 1, and last an
    offset. Fitted by a rank to the decoder of its checkpoint."""

    weights: tuple[tuple[float, float, float], ...]


class Preview(Struct, frozen=True, kw_only=True):
    """A rough picture of a request on its way: the file of the one at `index`, after `step` steps."""

    request_id: str
    index: int
    step: int
    data: bytes
