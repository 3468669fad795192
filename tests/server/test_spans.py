"""Traces of clients, and spans of requests."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from epe.errors import NonFinite
from epe.server.spans import Spans, TraceParent, parse_traceparent, tracer_from
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
    spans = Spans(provider.get_tracer("test"))

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
    assert tracer_from({}) is None
    assert tracer_from({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}) is None


async def test_the_trace_of_a_client_is_in_the_log(client):
    for header, told in ((HEADER, TRACE), ("nonsense", None)):
        with capture_logs() as lines:
            body = {"prompt": "x", "size": "64x64"}
            async with client.post(PATH, json=body, headers={"traceparent": header}) as response:
                assert response.status == 200
            await until(lambda: any(line["event"] == "http.answered" for line in lines))
        (line,) = (line for line in lines if line["event"] == "http.answered")
        assert line.get("trace_id") == told
