"""Errors as HTTP answers, in the shape that OpenAI's clients read: `{"error": {message, type, param, code}}`.

Their clients send again what got 408, 409, 429 or 5xx, unless `x-should-retry` says otherwise; so each answer
here says whether sending again can help.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
from aiohttp import web

from epe.errors import (
    BadInput,
    BadRequest,
    Cancelled,
    Conflict,
    EpeError,
    Expired,
    Gone,
    NonFinite,
    NotStored,
    OutOfMemory,
    Overloaded,
    Refused,
    StartFailed,
    TaskFailed,
    UnknownJob,
    UnknownModel,
    UnknownRank,
)

# Clients wait at most this long before they send again; some of them give up at a larger value.
MAX_RETRY_AFTER_S = 60
_RETRY_NOT_READY_S = 5
_CODES = {401: "invalid_api_key"}
_RETRY_SOON_S = 1


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong; `stage` and `step` say where, if it did so at work on the request."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    stage: str | msgspec.UnsetType = msgspec.UNSET
    step: int | msgspec.UnsetType = msgspec.UNSET


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an error is answered; without `retry`, sending again cannot help."""

    status: int
    code: str
    retry: bool = False
    retry_after_s: float | None = None


def answer(error: EpeError, *, phase: str = "running") -> web.Response:
    """The answer to an error; `phase` is that of the service, which explains a refusal."""
    verdict = judge(error, phase)
    response = _response(verdict.status, _detail(error, verdict))
    if verdict.retry_after_s is not None:
        seconds = min(max(1, math.ceil(verdict.retry_after_s)), MAX_RETRY_AFTER_S)
        response.headers["Retry-After"] = str(seconds)
    if verdict.status >= 429 and not verdict.retry:
        response.headers["x-should-retry"] = "false"
    return response


def detail_of(error: EpeError) -> ErrorDetail:
    """An error as a part of an answer that is none itself."""
    return _detail(error, judge(error, "running"))


def _detail(error: EpeError, verdict: Verdict) -> ErrorDetail:
    failed = error if isinstance(error, TaskFailed) else None
    return ErrorDetail(
        message=str(error) or verdict.code,
        type=_type_of(verdict.status),
        param=error.param if isinstance(error, BadRequest) else None,
        code=verdict.code,
        stage=failed.stage if failed and failed.stage else msgspec.UNSET,
        step=failed.step if failed and failed.step is not None else msgspec.UNSET,
    )


def judge(error: EpeError, phase: str) -> Verdict:
    """Status, code and whether to send again."""
    match error:
        case UnknownModel():
            return Verdict(404, "model_not_found")
        case UnknownJob() | UnknownRank():
            return Verdict(404, "not_found")
        case BadInput():
            return Verdict(400, "invalid_value")
        case Conflict():
            return Verdict(409, "conflict")
        case Refused():
            return _judge_refusal(error, phase)
        case Overloaded():
            return Verdict(429, "overloaded", retry=True, retry_after_s=_RETRY_SOON_S)
        case Gone():
            return Verdict(503, "gone", retry=True, retry_after_s=_RETRY_SOON_S)
        case NotStored():
            return Verdict(503, "not_stored", retry=True, retry_after_s=_RETRY_NOT_READY_S)
        case StartFailed():
            return Verdict(503, "unavailable", retry=True, retry_after_s=_RETRY_NOT_READY_S)
        case Cancelled():
            return Verdict(410, "cancelled")
        case Expired():
            return Verdict(504, "deadline_missed")
        case NonFinite():
            return Verdict(500, "non_finite")
        case OutOfMemory():
            return Verdict(500, "out_of_memory")
        case TaskFailed():
            return Verdict(500, "task_failed")
        case _:
            return Verdict(500, "internal_error")


def _judge_refusal(error: Refused, phase: str) -> Verdict:
    if phase != "running":
        return Verdict(503, phase, retry=True, retry_after_s=error.retry_after_s or _RETRY_NOT_READY_S)
    if error.retry_after_s is None:
        return Verdict(429, "refused")
    return Verdict(429, "overloaded", retry=True, retry_after_s=error.retry_after_s)


def answer_http(error: web.HTTPException) -> web.Response:
    """What aiohttp itself refuses (no such route, wrong method, body too large), in the same shape."""
    message = error.text or error.reason
    code = _CODES.get(error.status) or error.reason.lower().replace(" ", "_")
    response = _response(error.status, ErrorDetail(message=message, type=_type_of(error.status), code=code))
    for name in ("Allow", "WWW-Authenticate", "Content-Range"):
        if name in error.headers:
            response.headers[name] = error.headers[name]
    return response


def answer_crash(request_id: str) -> web.Response:
    """A defect of ours: the log has it, the client gets no inside."""
    message = f"internal error; the log of the service has it under request id {request_id}"
    response = _response(500, ErrorDetail(message=message, type="server_error", code="internal_error"))
    response.headers["x-should-retry"] = "false"
    return response


def _response(status: int, detail: ErrorDetail) -> web.Response:
    body = msgspec.json.encode(ErrorBody(error=detail))
    return web.Response(status=status, body=body, content_type="application/json")


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
