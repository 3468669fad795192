"""From what happened to numbers: one run, and several seeds of it with their spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from msgspec import Struct
from msgspec.structs import asdict

from epe.planning.correction import quantile
from epe.simulator.outcome import Outcome, Record

# A request starves when it waits, at one time, for more than this many times its best latency alone.
STARVED_AFTER = 10.0

# Student's t, 97.5 %, for 1, 2, ... degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
      2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045)  # fmt: skip
_T_MANY = 1.96


class Metrics(Struct, frozen=True, kw_only=True):
    """One run, or the mean of several.

    `slo_attainment` is the share of requests that were finished in time, `weighted_goodput` the same weighted by
    their rank-seconds on one rank. Latencies are of finished requests. `starved` counts requests that waited at
    one time for more than ten times their best latency. `max_normalized_latency` is in best latencies alone.
    `useful_busy` is the share of all rank-seconds, from the first arrival to the last finish, that the finished
    requests would have taken on one rank.
    """

    slo_attainment: float
    weighted_goodput: float
    throughput_rps: float
    mean_latency_s: float
    p50_latency_s: float
    p95_latency_s: float
    p99_latency_s: float
    starved: float
    max_normalized_latency: float
    migrations_per_request: float
    useful_busy: float
    plan_ms_p50: float
    plan_ms_p99: float


class Spread(Struct, frozen=True, kw_only=True):
    """Means over seeds, and the 95 % interval (low, high) of each."""

    mean: Metrics
    ci95: dict[str, tuple[float, float]]


class ClassMetrics(Struct, frozen=True, kw_only=True):
    """One class of requests in one run, or the mean of several."""

    requests: float
    slo_attainment: float
    p50_latency_s: float
    p95_latency_s: float


def measure(outcome: Outcome) -> Metrics:
    """The numbers of one run."""
    records = outcome.records
    finished = [record for record in records if record.end == "finished"]
    latencies_s = [record.latency_s for record in finished]
    span_s = max(outcome.end_s - outcome.begin_s, 1e-12)
    plan_ms = [1e3 * s for s in outcome.plan_s]
    work_s = sum(record.single_s for record in finished)
    return Metrics(
        slo_attainment=fmean(record.met for record in records),
        weighted_goodput=sum(r.single_s for r in records if r.met) / sum(r.single_s for r in records),
        throughput_rps=len(finished) / span_s,
        mean_latency_s=fmean(latencies_s) if latencies_s else 0.0,
        p50_latency_s=percentile(latencies_s, 0.50),
        p95_latency_s=percentile(latencies_s, 0.95),
        p99_latency_s=percentile(latencies_s, 0.99),
        starved=sum(record.longest_wait_s > STARVED_AFTER * record.best_s for record in records),
        max_normalized_latency=max(record.normalized_latency for record in records),
        migrations_per_request=fmean(record.num_migrations for record in records),
        useful_busy=work_s / (outcome.world_size * span_s),
        plan_ms_p50=percentile(plan_ms, 0.50),
        plan_ms_p99=percentile(plan_ms, 0.99),
    )


def measure_classes(outcome: Outcome) -> dict[str, ClassMetrics]:
    """The numbers of each class of one run."""
    classes: dict[str, list[Record]] = {}
    for record in outcome.records:
        classes.setdefault(record.size, []).append(record)
    return {name: _class_metrics(records) for name, records in sorted(classes.items())}


def spread(runs: Sequence[Metrics]) -> Spread:
    """Mean and 95 % interval of each number over the seeds (Student's t; a single seed has no interval)."""
    columns = {name: [getattr(run, name) for run in runs] for name in Metrics.__struct_fields__}
    return Spread(
        mean=Metrics(**{name: fmean(values) for name, values in columns.items()}),
        ci95={name: interval(values) for name, values in columns.items()},
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean."""
    mean, freedom = fmean(values), len(values) - 1
    if freedom == 0:
        return mean, mean
    factor = _T[freedom - 1] if freedom <= len(_T) else _T_MANY
    half = factor * stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def mean_classes(runs: Sequence[dict[str, ClassMetrics]]) -> dict[str, ClassMetrics]:
    """The mean of each class over the seeds in which it occurred."""
    names = sorted({name for run in runs for name in run})
    return {name: _mean_class([run[name] for run in runs if name in run]) for name in names}


def percentile(values: Sequence[float], share: float) -> float:
    """By linear interpolation between the sorted values; 0 of nothing."""
    return quantile(values, share) if values else 0.0


def _class_metrics(records: list[Record]) -> ClassMetrics:
    latencies_s = [record.latency_s for record in records if record.end == "finished"]
    return ClassMetrics(
        requests=len(records),
        slo_attainment=fmean(record.met for record in records),
        p50_latency_s=percentile(latencies_s, 0.50),
        p95_latency_s=percentile(latencies_s, 0.95),
    )


def _mean_class(runs: list[ClassMetrics]) -> ClassMetrics:
    columns = [asdict(run) for run in runs]
    return ClassMetrics(**{name: fmean(row[name] for row in columns) for name in columns[0]})
