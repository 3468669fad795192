"""Errors become failures where the work is done, and errors again where somebody waits for it."""

from __future__ import annotations

from epe.errors import (
    BadRequest,
    Cancelled,
    Conflict,
    EpeError,
    Expired,
    Gone,
    NonFinite,
    OutOfMemory,
    Refused,
    TaskFailed,
)
from epe.messages import Failure, FailureKind, Stage


def failure_of(error: BaseException, *, stage: Stage | None = None, step: int | None = None) -> Failure:
    """The failure of a task that raised `error`."""
    match error:
        case BadRequest():
            return Failure(kind=FailureKind.BAD_REQUEST, message=str(error), param=error.param, stage=stage)
        case NonFinite():
            kind = FailureKind.NON_FINITE
        case OutOfMemory():
            kind = FailureKind.OUT_OF_MEMORY
        case _:
            kind = FailureKind.TASK_RAISED
    message = str(error) if isinstance(error, EpeError) else f"{type(error).__name__}: {error}"
    return Failure(kind=kind, message=message, stage=stage, step=step)


def error_of(failure: Failure) -> EpeError:
    """The error that whoever waits for the request sees."""
    where = f" (stage {failure.stage}, step {failure.step})" if failure.step is not None else ""
    stage = failure.stage or ""
    match failure.kind:
        case FailureKind.BAD_REQUEST:
            return BadRequest(failure.message, param=failure.param)
        case FailureKind.REFUSED:
            return Refused(failure.message, retry_after_s=failure.retry_after_s)
        case FailureKind.CONFLICT:
            return Conflict(failure.message)
        case FailureKind.NON_FINITE:
            return NonFinite(failure.message + where, stage=stage, step=failure.step)
        case FailureKind.OUT_OF_MEMORY:
            return OutOfMemory(failure.message + where, stage=stage, step=failure.step)
        case FailureKind.CANCELLED:
            return Cancelled(failure.message + where, stage=stage, step=failure.step)
        case FailureKind.RANK_LOST:
            return Gone(failure.message)
        case FailureKind.EXPIRED:
            return Expired(failure.message + where, stage=stage, step=failure.step)
        case _:
            return TaskFailed(failure.message + where, stage=stage, step=failure.step)
