"""One request as a line of a trace (docs/trace-format.md): what a service records and the simulator replays."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from epe.messages import Request

Count = Annotated[int, Meta(ge=1)]


class TraceLine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line. `deadline_s` is seconds after arrival; `conditions` is 2 with guidance; `batch` requests arrive
    together; `model` may be left out where the cost set has one."""

    arrival_s: Annotated[float, Meta(ge=0)]
    height: Count
    width: Count
    frames: Count = 1
    steps: Count
    conditions: Annotated[int, Meta(ge=1, le=2)] | None = None
    model: str = ""
    deadline_s: Annotated[float, Meta(gt=0)] | None = None
    on_deadline: Literal["continue", "expire"] = "continue"
    priority: int = 0
    client_id: str = ""
    batch: Count = 1


def line_of(request: Request, *, arrival_s: float, conditions: int, model: str = "") -> TraceLine:
    """A request that arrived `arrival_s` seconds after the recording began."""
    return TraceLine(
        arrival_s=arrival_s,
        height=request.height,
        width=request.width,
        frames=request.num_frames,
        steps=request.num_steps,
        conditions=conditions,
        model=model,
        deadline_s=request.deadline_s,
        on_deadline=request.on_deadline,
        priority=request.priority,
        client_id=request.client_id,
    )


def encode_line(line: TraceLine) -> bytes:
    """One line of a trace, with its end; fields that have their default are left out."""
    return msgspec.json.encode(line) + b"\n"
