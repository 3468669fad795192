"""`/metrics`: every metric of the page has a sample after one request, in base units and in the right shape."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from epe.errors import NonFinite
from epe.messages import DeviceUse, GraphCounts, MagCache, RankStatus, Reuse, Status
from epe.server.metrics import Metrics
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
DOCUMENTED = dict(re.findall(r"^\| `(epe_\w+?)(?:_total)?` \| (\w+)", PAGE, re.M))


async def page_of(cluster: Cluster, metrics: Metrics) -> dict[str, dict[tuple, float]]:
    text = metrics.show(await cluster.desk.status(), results_bytes=5, num_readers=2).decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    return {
        name: {(s.name, *s.labels.values()): s.value for s in each.samples}
        for name, each in families.items()
        if name.startswith("epe_") and not name.endswith("_created")
    }


def drawn(*requests, **settings) -> dict[str, dict[tuple, float]]:
    """The page after these requests, in virtual time."""

    async def main() -> dict[str, dict[tuple, float]]:
        cluster, metrics = Cluster(**settings), Metrics()
        (await cluster.start()).listen(metrics.hear)
        metrics.answered(method="GET", route="/health", status=200)
        await cluster.draw(*requests)
        page = await page_of(cluster, metrics)
        await cluster.stop()
        return page

    return run(main())


def test_the_page_and_the_document_name_the_same_metrics():
    page = drawn(request("a", deadline_s=100))
    assert set(page) == set(DOCUMENTED)


def test_after_one_request_every_documented_metric_has_a_sample():
    page = drawn(request("a", deadline_s=100))
    # Of these there is one only after what they count has happened.
    needs_more = {"epe_requests_refused", "epe_lanes", "epe_cache_steps"}
    # A CPU captures nothing.
    needs_more |= {"epe_graph_bytes", "epe_graph_passes"}
    assert {name for name, samples in page.items() if not samples} <= needs_more


def test_names_are_in_base_units():
    for name, kind in DOCUMENTED.items():
        assert not re.search(r"_(ms|milliseconds|kb|mb|mib|percent)$", name)
        if kind == "histogram":
            assert name.endswith(("_seconds", "_ratio", "_bytes"))


def test_steps_are_counted_by_the_width_of_their_lane():
    page = drawn(request("a", steps=12), request("b", steps=9))
    assert sum(page["epe_denoise_steps"].values()) == 21


def test_hits_and_misses_of_flexcache_are_counted_by_strategy():
    reuse = Reuse(strategy=MagCache(), computed=(0, 1, 5, 11))
    page = drawn(replace(request("a", steps=12), reuse=reuse), request("b", steps=9))
    assert page["epe_cache_steps"] == {
        ("epe_cache_steps_total", "hit", "magcache"): 8.0,
        ("epe_cache_steps_total", "miss", "magcache"): 4.0,
    }
    assert page["epe_cache_request_bytes"][("epe_cache_request_bytes_count",)] == 1


@pytest.mark.parametrize(
    ("deadline_s", "priority", "sample"),
    [(100, 0, ("met", "usual")), (1e-3, 5, ("missed", "high")), (1e-3, -1, ("missed", "low"))],
)
def test_deadlines_are_counted_by_class_and_outcome(deadline_s, priority, sample):
    page = drawn(request("a", deadline_s=deadline_s, priority=priority))
    assert page["epe_deadlines"] == {("epe_deadlines_total", *sample): 1.0}


def test_a_request_that_expires_has_missed_its_deadline():
    """Else a service that ends all late requests would seem to keep every deadline."""
    page = drawn(request("a", deadline_s=1e-3, on_deadline="expire"))
    assert page["epe_deadlines"] == {("epe_deadlines_total", "missed", "usual"): 1.0}
    assert page["epe_requests_ended"] == {("epe_requests_ended_total", "expired"): 1.0}


def test_outcomes_are_counted_and_failures_leave_no_times():
    def fault(lease, rank):
        return NonFinite("nan", stage="denoise") if lease.request.id == "bad" else None

    page = drawn(request("good"), request("bad"), fault=fault)
    assert page["epe_requests_admitted"] == {("epe_requests_admitted_total",): 2.0}
    ended = {labels[1]: value for labels, value in page["epe_requests_ended"].items()}
    assert ended == {"finished": 1.0, "non_finite": 1.0}
    assert page["epe_request_seconds"][("epe_request_seconds_count",)] == 1.0


def test_the_gauges_say_how_things_are_now():
    page = drawn(request("a"))
    assert page["epe_phase"][("epe_phase", "running")] == 1.0
    assert sum(page["epe_phase"].values()) == 1.0
    assert page["epe_ranks"][("epe_ranks", "idle")] == 4.0
    assert page["epe_results_bytes"] == {("epe_results_bytes",): 5.0}
    assert page["epe_lanes"] == {}
    assert page["epe_cache_kept_bytes"] == {("epe_cache_kept_bytes",): 0.0}


def test_what_flexcache_keeps_now_is_that_of_the_requests_in_work():
    status = Status(phase="running", ranks=(), num_waiting=0, num_running=1, num_finished=0, kept_bytes=4096)
    page = Metrics().show(status, results_bytes=0, num_readers=0).decode()
    assert "\nepe_cache_kept_bytes 4096.0\n" in page


def shown(metrics: Metrics, *ranks: RankStatus) -> str:
    status = Status(phase="running", ranks=ranks, num_waiting=0, num_running=0, num_finished=0)
    return metrics.show(status, results_bytes=0, num_readers=0).decode()


def test_passes_of_a_rank_are_counted_also_when_it_begins_anew():
    metrics = Metrics()
    lives = (
        GraphCounts(num_eager=3, num_captured=2, num_replayed=40, num_bytes=900),
        GraphCounts(num_eager=4, num_captured=2, num_replayed=50, num_refused=1, num_bytes=900),
        GraphCounts(num_eager=2, num_captured=1, num_replayed=7, num_bytes=500),
    )
    for graphs in lives:
        use = DeviceUse(allocated_bytes=1000, reserved_bytes=2000, graphs=graphs)
        page = shown(metrics, RankStatus(rank=1, state="idle", device="cuda:1", use=use))
    assert 'epe_graph_passes_total{kind="replayed",rank="1"} 57.0' in page
    assert 'epe_graph_passes_total{kind="refused",rank="1"} 1.0' in page
    assert 'epe_graph_passes_total{kind="eager",rank="1"} 6.0' in page
    assert 'epe_graph_bytes{rank="1"} 500.0' in page
    assert 'epe_rank_memory_bytes{kind="reserved",rank="1"} 2000.0' in page


def test_the_error_of_the_prediction_is_a_share_of_what_it_took():
    page = drawn(request("a"))
    ((_, basis), count), *_ = [
        (labels[:2], value)
        for labels, value in page["epe_prediction_error_ratio"].items()
        if labels[0].endswith("_count")
    ]
    assert (basis, count) == ("guessed", 1.0)


async def test_the_page_is_served_and_counts_its_answers(client, engine):
    for _ in range(2):
        async with client.get("/v1/nothing/at/all") as response:
            assert response.status == 404
    async with client.request("BREW", "/health") as response:
        assert response.status in (400, 405)
    async with client.get("/metrics") as response:
        text = await response.text()
    assert response.status == 200
    assert response.content_type == "text/plain"
    assert 'epe_http_answers_total{method="GET",route="",status="404"} 2.0' in text
    assert "BREW" not in text
    assert "process_resident_memory_bytes" in text


async def test_metrics_are_there_when_the_planner_is_gone(client, engine):
    engine.silent = True
    async with client.get("/metrics") as response:
        assert response.status == 200
        assert 'epe_phase{phase="failed"} 1.0' in await response.text()
