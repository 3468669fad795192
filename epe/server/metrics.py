"""`GET /metrics`: how the service fares, for Prometheus. Seconds and bytes; docs/metrics.md names each metric.

Counters and histograms grow with what the engine tells; gauges are what the planner says when somebody asks.
"""

from __future__ import annotations

from collections import Counter as Tally

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from epe.cache import name_of
from epe.messages import (
    Admitted,
    CacheAccount,
    Departed,
    Event,
    FailureKind,
    LayoutChanged,
    Progress,
    Request,
    Stage,
    Status,
    Turned,
)
from epe.server.events import EVENTS
from epe.server.health import inspect
from epe.server.rank_metrics import RankMetrics
from epe.server.service import SERVICE

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PHASES = ("loading", "warming", "running", "draining", "failed")
# From a step on a GPU to a video on a few of them.
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
# From a small picture to a long video.
_BYTES = tuple(2.0**power for power in range(16, 32, 2))
# How far off a prediction was, as a share of what it took.
_SHARES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1, 2, 5)


class Metrics:
    """One for each service, with a registry of its own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._make_counts(registry)
        self._make_times(registry)
        self._make_gauges(registry)
        self._ranks = RankMetrics(registry)
        # The steps of requests that have not ended: each report tells how far it is.
        self._steps: dict[str, int] = {}

    def _make_counts(self, registry: CollectorRegistry) -> None:
        def count(name: str, what: str, *labels: str) -> Counter:
            return Counter(name, what, labels, registry=registry)

        self._admitted = count("epe_requests_admitted", "Requests that were taken.")
        self._refused = count("epe_requests_refused", "Requests that were turned away.", "reason")
        self._ended = count("epe_requests_ended", "Requests that have ended.", "outcome")
        self._num_steps = count("epe_denoise_steps", "Denoising steps that were drawn.", "width")
        self._deadlines = count(
            "epe_deadlines", "Deadlines of requests that finished or expired.", "priority", "outcome"
        )
        self._migrations = count("epe_migrations", "Leases before which a state had to move.")
        self._recoveries = count("epe_recoveries", "Times that a request went on after a lost lane.")
        self._cached = count(
            "epe_cache_steps", "Steps of requests with FlexCache: hits were reused.", "strategy", "result"
        )
        self._answers = count("epe_http_answers", "Answers to HTTP requests.", "method", "route", "status")

    def _make_times(self, registry: CollectorRegistry) -> None:
        def times(name: str, what: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(name, what, labels, registry=registry, buckets=buckets)

        self._queue_s = times("epe_queue_seconds", "From arrival to the first work on a request.")
        self._stage_s = times("epe_stage_seconds", "Work of a finished request by stage.", "stage")
        self._request_s = times("epe_request_seconds", "From arrival to finish.")
        self._cache_bytes = times(
            "epe_cache_request_bytes", "The most that FlexCache kept of a request on a rank.", buckets=_BYTES
        )
        self._error = times(
            "epe_prediction_error_ratio",
            "How far the finish predicted at admission was off, by the seconds that it took.",
            "predicted_from",
            buckets=_SHARES,
        )

    def _make_gauges(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(name, what, labels, registry=registry)

        self._phase = gauge("epe_phase", "1 for the phase that the service is in.", "phase")
        self._num_waiting = gauge("epe_requests_waiting", "Requests that no lane has begun.")
        self._num_running = gauge("epe_requests_running", "Requests that were begun and have not ended.")
        self._lanes = gauge("epe_lanes", "Lanes at work by the number of their ranks.", "width")
        self._kept_bytes = gauge("epe_cache_kept_bytes", "What FlexCache keeps of the requests in work.")
        self._results_bytes = gauge("epe_results_bytes", "Files that are kept for clients to fetch.")
        self._readers = gauge("epe_event_readers", "Readers of /v1/events.")

    def hear(self, event: Event) -> None:
        """Called for each event."""
        match event:
            case Admitted():
                self._admitted.inc()
            case Turned(failure=failure):
                self._refused.labels(failure.kind).inc()
            case Progress(stage=Stage.DENOISE):
                self._drawn(event)
            case LayoutChanged(lanes=lanes):
                self._lanes.clear()
                for width, times in Tally(len(lane.ranks) for lane in lanes).items():
                    self._lanes.labels(width).set(times)
            case Departed():
                self._departed(event)

    def answered(self, *, method: str, route: str, status: int) -> None:
        """An HTTP request was answered."""
        self._answers.labels(method, route, status).inc()

    def show(self, status: Status, *, results_bytes: int, num_readers: int) -> bytes:
        """The page, with the gauges as they are now."""
        for phase in PHASES:
            self._phase.labels(phase).set(phase == status.phase)
        self._ranks.show(status.ranks)
        self._num_waiting.set(status.num_waiting)
        self._num_running.set(status.num_running)
        self._kept_bytes.set(status.kept_bytes)
        self._results_bytes.set(results_bytes)
        self._readers.set(num_readers)
        return generate_latest(self.registry)

    def _drawn(self, progress: Progress) -> None:
        # After a lost lane a request goes back: what is drawn again counts again.
        more = progress.step - self._steps.get(progress.request_id, 0)
        self._steps[progress.request_id] = progress.step
        self._num_steps.labels(len(progress.ranks)).inc(max(0, more))

    def _departed(self, departed: Departed) -> None:
        request, account, failure = departed.request, departed.ended.account, departed.ended.failure
        self._steps.pop(request.id, None)
        self._ended.labels(failure.kind if failure else "finished").inc()
        self._migrations.inc(account.num_migrations)
        self._recoveries.inc(account.num_recoveries)
        if account.cache is not None:
            self._reused(account.cache)
        if request.deadline_s is not None and (failure is None or failure.kind is FailureKind.EXPIRED):
            is_met = failure is None and account.total_s <= request.deadline_s
            self._deadlines.labels(_class_of(request), "met" if is_met else "missed").inc()
        if failure is not None:
            return
        self._queue_s.observe(account.queue_s)
        self._request_s.observe(account.total_s)
        for stage in Stage:
            self._stage_s.labels(stage).observe(getattr(account, f"{stage}_s"))
        if account.total_s > 0:
            error = abs(account.total_s - departed.accepted.predicted_s) / account.total_s
            self._error.labels(departed.accepted.predicted_from).observe(error)

    def _reused(self, cache: CacheAccount) -> None:
        strategy = name_of(cache.settings)
        self._cached.labels(strategy, "hit").inc(cache.reused_steps)
        self._cached.labels(strategy, "miss").inc(cache.computed_steps)
        self._cache_bytes.observe(cache.kept_bytes)


def _class_of(request: Request) -> str:
    """Three classes, since each priority of its own would be a series of its own."""
    return "high" if request.priority > 0 else "low" if request.priority < 0 else "usual"


METRICS = web.AppKey("metrics", Metrics)


async def get_metrics(http: web.Request) -> web.Response:
    """A planner that does not answer is a service in the phase `failed`."""
    service = http.app[SERVICE]
    status = await inspect(service.engine)
    page = http.app[METRICS].show(
        status, results_bytes=service.results.num_bytes, num_readers=len(http.app[EVENTS].readers)
    )
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})
