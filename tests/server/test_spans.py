"""Traces of clients, and spans of requests."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from epe.errors import NonFinite
from epe.families import family
from epe.server.app import make_app, serve
from epe.server.service import SERVICE
from epe.server.spans import Spans, TraceParent, parse_traceparent, provider_from
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request
from tests.server.stand_in import until
from tests.server.test_images import PATH

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{SPAN}-01"


def test_a_header_of_the_standard_is_read():
    assert parse_traceparent(HEADER) == TraceParent(TRACE, SPAN, 1)
    # A later version may have more behind it.
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-01-more") == TraceParent(TRACE, SPAN, 1)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}",
    ],
)
def test_what_is_no_such_header_is_ignored(header):
    assert parse_traceparent(header) is None


def spans_of(*requests, parent: TraceParent | None = None, **settings):
    """The spans of these requests, in virtual time."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = Spans(provider)

    async def main() -> None:
        cluster = Cluster(**settings)
        (await cluster.start()).listen(spans.hear)
        spans.follow(requests, parent)
        await cluster.draw(*requests)
        await cluster.stop()

    run(main())
    assert spans._parents == {}
    return exporter.get_finished_spans()


def test_a_request_is_a_span_under_that_of_its_client_with_one_for_each_lane():
    *lanes, whole = spans_of(request("a", steps=8), parent=TraceParent(TRACE, SPAN, 1))
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert f"{whole.parent.span_id:016x}" == SPAN
    assert whole.attributes["epe.request_id"] == "a"
    assert [lanes[0].name, lanes[-1].name] == ["encode", "decode"]
    assert sum(lane.attributes["epe.num_steps"] for lane in lanes if lane.name == "denoise") == 8
    for lane in lanes:
        assert lane.parent.span_id == whole.context.span_id
        assert (
            whole.start_time <= lane.start_time + 10**6 <= lane.end_time + 10**6 <= whole.end_time + 2 * 10**6
        )


def test_without_a_client_that_traces_a_request_begins_a_trace():
    *_, whole = spans_of(request("a"))
    assert whole.parent is None


def test_a_failed_request_is_a_failed_span():
    def fault(lease, rank):
        return NonFinite("nan in the latents", stage="denoise")

    *_, whole = spans_of(request("a"), fault=fault)
    assert (whole.status.is_ok, whole.status.description) == (False, "nan in the latents")


def test_nothing_is_exported_unless_the_environment_names_an_endpoint():
    assert provider_from({}) is None
    assert provider_from({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}) is None


@asynccontextmanager
async def collector(received: list[ExportTraceServiceRequest]) -> AsyncIterator[str]:
    """One that speaks OTLP over HTTP, as far as traces go; its address."""

    async def take(http: web.Request) -> web.Response:
        assert http.content_type == "application/x-protobuf"
        body = await http.read()
        received.append(ExportTraceServiceRequest.FromString(body))
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    sock = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, sock).start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        await runner.cleanup()


async def test_a_collector_has_the_spans_of_a_request_before_the_service_has_ended(monkeypatch):
    received: list[ExportTraceServiceRequest] = []
    async with collector(received) as address:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        cluster = Cluster(seconds=lambda lease: 0.001)
        sock = socket.create_server(("127.0.0.1", 0))
        app = make_app(await cluster.start(), family=family("zimage"), name="image")
        runner = await serve(app, sock, end_within_s=1)
        async with ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}") as client:
            body = {"prompt": "a secret", "size": "64x64", "num_inference_steps": 4}
            async with client.post(PATH, json=body, headers={"traceparent": HEADER}) as response:
                name = (await response.json())["epe"]["request_id"]
        await runner.cleanup()
        await cluster.stop()
    resources = [each for message in received for each in message.resource_spans]
    (service_name,) = {
        a.value.string_value for a in resources[0].resource.attributes if a.key == "service.name"
    }
    assert service_name == "epe"
    spans = [span for each in resources for scope in each.scope_spans for span in scope.spans]
    (whole,) = (span for span in spans if span.name == "request")
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, SPAN)
    assert {a.key: a.value for a in whole.attributes}["epe.request_id"].string_value == name
    lanes = [span for span in spans if span is not whole]
    assert {span.name for span in lanes} == {"encode", "denoise", "decode"}
    assert {span.parent_span_id for span in lanes} == {whole.span_id}
    assert b"secret" not in b"".join(message.SerializeToString() for message in received)


async def test_of_a_request_with_a_key_nothing_is_followed_after_its_end(monkeypatch):
    """It is drawn under the name of its job, so that nobody would hear of the end of another name."""
    monkeypatch.setattr("epe.server.app.provider_from", TracerProvider)
    cluster = Cluster(seconds=lambda lease: 0.001)
    sock = socket.create_server(("127.0.0.1", 0))
    app = make_app(await cluster.start(), family=family("zimage"), name="image")
    runner = await serve(app, sock, end_within_s=1)
    async with ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}") as client:
        body = {"prompt": "x", "size": "64x64", "num_inference_steps": 4}
        headers = {"traceparent": HEADER, "Idempotency-Key": "once"}
        async with client.post(PATH, json=body, headers=headers) as response:
            assert response.status == 200
    await runner.cleanup()
    await cluster.stop()
    assert app[SERVICE].spans._parents == {}


async def test_the_trace_of_a_client_is_in_the_log(client):
    for header, told in ((HEADER, TRACE), ("nonsense", None)):
        with capture_logs() as lines:
            body = {"prompt": "x", "size": "64x64"}
            async with client.post(PATH, json=body, headers={"traceparent": header}) as response:
                assert response.status == 200
            await until(lambda: any(line["event"] == "http.answered" for line in lines))
        (line,) = (line for line in lines if line["event"] == "http.answered")
        assert line.get("trace_id") == told
