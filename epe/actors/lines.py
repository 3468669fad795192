"""The log lines of a request's life; the last one has all of its timings."""

from __future__ import annotations

from typing import Any

from epe.messages import Account, Failure, Request, Stage
from epe.telemetry.log import get_logger

log = get_logger("planner")


def log_admitted(request: Request, *, predicted_s: float, predicted_from: str, late: bool) -> None:
    """`request.admitted`; `predicted_from` says what the prediction rests on."""
    log.info(
        "request.admitted",
        request=request.id,
        size=f"{request.width}x{request.height}",
        steps=request.num_steps,
        predicted_s=round(predicted_s, 3),
        predicted_from=predicted_from,
        late=late,
    )


def log_ended(account: Account, failure: Failure | None) -> None:
    """`request.finished` or `request.failed`: the canonical line."""
    fields: dict[str, Any] = {
        name: round(getattr(account, name), 4) for name in account.__struct_fields__ if name.endswith("_s")
    }
    fields |= {
        "request": account.request_id,
        "migrations": account.num_migrations,
        "lanes": [list(visit.ranks) for visit in account.visits if visit.stage is Stage.DENOISE],
    }
    if failure is None:
        log.info("request.finished", **fields)
    else:
        log.info("request.failed", kind=failure.kind, reason=failure.message, **fields)
