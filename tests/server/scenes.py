"""What happens in a service that somebody watches, as a test has it happen."""

from __future__ import annotations

import time

from aiohttp import ClientSession

from epe.config.request import resolve_request
from epe.families import family
from epe.messages import (
    Accepted,
    Admitted,
    Departed,
    Ended,
    Failure,
    LaneAtWork,
    LayoutChanged,
    Live,
    Stage,
)
from tests.server.stand_in import StandIn, account_of

PROMPT = "a secret"
# Long enough that nothing is predicted to have ended while a slow machine looks.
PREDICTED_S = 900.0


def address_of(client: ClientSession) -> str:
    return str(client._base_url)


def live(name: str, **more: object) -> Live:
    request = resolve_request(family("zimage"), id=name, prompt=PROMPT, **more)
    accepted = Accepted(request_id=name, predicted_s=PREDICTED_S)
    return Live(request=request, accepted=accepted, arrived_at=time.time())


def admit(engine: StandIn, name: str, **more: object) -> Live:
    """Have a request come, as the page hears of it and as it is listed."""
    one = live(name, **more)
    engine.live.append(one)
    engine.tell(Admitted(request=one.request, accepted=one.accepted, arrived_at=one.arrived_at))
    return one


def depart(engine: StandIn, one: Live, failure: Failure | None = None) -> None:
    engine.live.remove(one)
    account = account_of(one.request.id, order=1)
    ended = Ended(request_id=one.request.id, account=account, failure=failure)
    engine.tell(Departed(request=one.request, accepted=one.accepted, arrived_at=one.arrived_at, ended=ended))


def layout(engine: StandIn, **ranks: tuple[int, ...]) -> None:
    lanes = (LaneAtWork(ranks=each, request_id=name, stage=Stage.DENOISE) for name, each in ranks.items())
    engine.tell(LayoutChanged(lanes=tuple(lanes)))
