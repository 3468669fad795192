"""Which requests are taken: limits before the plan, deadlines after it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from epe.cache import record_bytes, sizes_of
from epe.families import Family
from epe.messages import Again, Failure, FailureKind, Request
from epe.planning.costs import Workload


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of what the service holds at once."""

    max_pending: int = 256
    max_inflight: int = 64
    refuse_late: bool = False


def workload_of(family: Family, request: Request) -> Workload:
    """The sizes of a request's tasks."""
    size = {"height": request.height, "width": request.width, "num_frames": request.num_frames}
    reuse = request.reuse
    sizes = sizes_of(family, request)
    kept = 0 if reuse is None else record_bytes(reuse, sizes, num_steps=request.num_steps)
    return Workload(
        tokens=family.num_tokens(**size),
        conditions=family.num_conditions(request.guidance_scale),
        state_bytes=family.state_bytes(**size) + kept,
        lent_bytes=0 if reuse is None else reuse.attention_bytes,
    )


def closed(phase: str, reason: str) -> Failure:
    """No request is taken in this phase of the service."""
    retry_s = 5.0 if phase in ("loading", "warming") else None
    why = f" ({reason})" if reason else ""
    message = f"the service is {phase}{why}; it takes no request now"
    return Failure(kind=FailureKind.REFUSED, message=message, retry_after_s=retry_s)


def twice(request_id: str) -> Failure:
    """The id is in use."""
    message = f"request id {request_id!r} is already in work; use another one"
    return Failure(kind=FailureKind.BAD_REQUEST, message=message, param="id")


def full(num_waiting: int, *, retry_s: float) -> Failure:
    """The queue is at its limit."""
    message = f"{num_waiting} requests are waiting, which is the limit; try again in {retry_s:.3g} s"
    return Failure(kind=FailureKind.REFUSED, message=message, retry_after_s=retry_s)


def has_expired(request: Request, again: Again) -> bool:
    """Whether one of an earlier life of the service was to be ended before now."""
    return request.on_deadline == "expire" and (request.deadline_s or math.inf) <= again.age_s


def expired(request: Request) -> Failure:
    """Its deadline has passed while nobody could draw it."""
    message = f"the deadline of {request.deadline_s:g} s had passed before the service ran again"
    return Failure(kind=FailureKind.EXPIRED, message=message)


def too_big(problem: str) -> Failure:
    """No lane has the memory for it (no retry can help)."""
    return Failure(kind=FailureKind.BAD_REQUEST, message=problem, param="size")


def too_late(request: Request, *, predicted_s: float) -> Failure:
    """The deadline cannot be met (no retry can help)."""
    message = (
        f"the deadline of {request.deadline_s:g} s would be missed: the earliest finish is in "
        f"{predicted_s:.3g} s; ask for a later deadline, a smaller size or fewer steps"
    )
    return Failure(kind=FailureKind.REFUSED, message=message, param="deadline_ms")
