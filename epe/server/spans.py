"""Requests as OpenTelemetry spans, under the span of whoever asked (W3C Trace Context, level 1).

Spans are made when a request has ended, of its account: nothing is measured for them. Without the extra `otel`, or
without an endpoint in the environment, nothing is exported, and the trace of a client is in the log alone.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from epe.messages import Departed, Event, Request, Turned
from epe.telemetry.log import get_logger

# Requests that nobody told the end of are forgotten beyond this.
MAX_FOLLOWED = 20_000
# How long the end of a service waits for a collector.
FLUSH_WITHIN_S = 2.0
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NANO = 1e9

_log = get_logger("server")


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The span of a client, as the header `traceparent` names it."""

    trace_id: str
    span_id: str
    flags: int


def parse_traceparent(header: str) -> TraceParent | None:
    """The span that a header names; None for what is no such header, which is then to be ignored."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    if not int(match[2], 16) or not int(match[3], 16):
        return None
    return TraceParent(match[2], match[3], int(match[4], 16))


class Spans:
    """One for each service; `provider` is OpenTelemetry's, or None."""

    def __init__(self, provider: Any = None) -> None:
        self.provider = provider
        self.tracer: Any = None if provider is None else provider.get_tracer("epe")
        self._parents: OrderedDict[str, TraceParent] = OrderedDict()

    def follow(self, requests: Iterable[Request], parent: TraceParent | None) -> None:
        """These requests are about to be handed in for the span `parent`."""
        if self.tracer is None or parent is None:
            return
        for request in requests:
            self._parents[request.id] = parent
        while len(self._parents) > MAX_FOLLOWED:
            self._parents.popitem(last=False)

    def hear(self, event: Event) -> None:
        """Called for each event."""
        match event:
            case Turned(request=request):
                self._parents.pop(request.id, None)
            case Departed(request=request) if self.tracer is not None:
                self._export(event, self._parents.pop(request.id, None))

    async def close(self, app: web.Application) -> None:
        """Send what is not sent yet: spans go out in batches, every few seconds."""
        if self.provider is None:
            return
        try:
            async with asyncio.timeout(FLUSH_WITHIN_S):
                await asyncio.to_thread(self.provider.force_flush)
        except TimeoutError:
            _log.warning("spans.were_lost", reason=f"they could not be sent within {FLUSH_WITHIN_S:g} s")

    def _export(self, departed: Departed, parent: TraceParent | None) -> None:
        from opentelemetry import trace

        request, account, failure = departed.request, departed.ended.account, departed.ended.failure
        begin_s = departed.arrived_at
        span = self.tracer.start_span(
            "request",
            context=_context_of(parent),
            start_time=_nanoseconds(begin_s),
            attributes=_facts(departed),
        )
        inside = trace.set_span_in_context(span)
        for visit in account.visits:
            lane = {
                "epe.lane": list(visit.ranks),
                "epe.num_steps": visit.num_steps,
                "epe.request_id": request.id,
            }
            start = _nanoseconds(begin_s + visit.start_s)
            child = self.tracer.start_span(visit.stage, context=inside, start_time=start, attributes=lane)
            child.end(_nanoseconds(begin_s + visit.end_s))
        if failure is not None:
            span.set_status(trace.StatusCode.ERROR, failure.message)
        span.end(_nanoseconds(begin_s + account.total_s))


def provider_from(env: Mapping[str, str] = os.environ) -> Any:
    """What exports over OTLP, where the environment names an endpoint and the extra `otel` is there."""
    if not any(env.get(name) for name in ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        _log.warning("spans.not_exported", reason=str(error), advice="install epe[otel]")
        return None
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: env.get("OTEL_SERVICE_NAME") or "epe"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _context_of(parent: TraceParent | None) -> Any:
    from opentelemetry import trace

    if parent is None:
        return trace.set_span_in_context(trace.INVALID_SPAN)
    context = trace.SpanContext(
        trace_id=int(parent.trace_id, 16),
        span_id=int(parent.span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(parent.flags),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(context))


def _facts(departed: Departed) -> dict[str, Any]:
    """What a span says of its request; no prompt."""
    request, account = departed.request, departed.ended.account
    return {
        "epe.request_id": request.id,
        "epe.size": f"{request.width}x{request.height}",
        "epe.num_steps": request.num_steps,
        "epe.queue_s": account.queue_s,
        "epe.predicted_s": departed.accepted.predicted_s,
        "epe.num_migrations": account.num_migrations,
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANO)
