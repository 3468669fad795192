"""What is written about an experiment: JSON for programs, a table for people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from epe.simulator.bounds import Bound
from epe.simulator.experiment import Experiment, Result, Trace
from epe.simulator.metrics import ClassMetrics

COLUMNS = {
    "in time": "slo_attainment",
    "weighted": "weighted_goodput",
    "req/s": "throughput_rps",
    "mean s": "mean_latency_s",
    "p50 s": "p50_latency_s",
    "p95 s": "p95_latency_s",
    "p99 s": "p99_latency_s",
    "starved": "starved",
    "moves": "migrations_per_request",
    "useful": "useful_busy",
    "plan p99 ms": "plan_ms_p99",
}
_SHARES = ("slo_attainment", "weighted_goodput", "useful_busy")


class Settings(Struct, frozen=True, kw_only=True):
    """Everything else that the numbers depend on; durations in seconds."""

    costs: str
    sources: tuple[str, ...]
    widths: tuple[int, ...]
    mix: str | None
    deadlines: dict[str, float | str | tuple[float, ...] | bool] | None
    requests: int
    seeds: tuple[int, ...]
    jitter: float
    dispatch_s: float
    plan_s: float | None
    migration_s: float
    clairvoyant: bool


class Document(Struct, frozen=True, kw_only=True):
    """The JSON of one experiment."""

    workload: str
    world: int
    load: float
    policies: dict[str, dict[str, float | dict[str, tuple[float, float]]]]
    bound: Bound
    classes: dict[str, dict[str, ClassMetrics]]
    settings: Settings


def document(result: Result) -> Document:
    """What `--json` writes of one load."""
    experiment = result.experiment
    return Document(
        workload=experiment.name,
        world=experiment.world_size,
        load=round(result.load, 6),
        policies={name: {**asdict(each.mean), "ci95": each.ci95} for name, each in result.policies.items()},
        bound=result.bound,
        classes=result.classes,
        settings=_settings(experiment, num_requests=_num_requests(result)),
    )


def as_json(results: Sequence[Result]) -> bytes:
    """One object; a list of them when there are several loads."""
    documents = [document(result) for result in results]
    return (
        msgspec.json.format(msgspec.json.encode(documents[0] if len(documents) == 1 else documents)) + b"\n"
    )


def as_table(result: Result) -> str:
    """The numbers of one load, best attainment first, and the bound below them."""
    experiment = result.experiment
    rows = [["policy", *COLUMNS]]
    ranked = sorted(result.policies.items(), key=lambda each: -each[1].mean.slo_attainment)
    for name, each in ranked:
        rows.append([name, *(_cell(each.mean, field) for field in COLUMNS.values())])
        low, high = each.ci95["slo_attainment"]
        rows[-1][1] += f" ±{50 * (high - low):.1f}"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    share = result.bound.slo_attainment
    bound = (
        f"at most {share:.1%} can be in time ({result.bound.kind})"
        if share is not None
        else result.bound.kind
    )
    head = (
        f"{experiment.name} on {experiment.world_size} ranks of {experiment.cost_set.name}, "
        f"load {result.load:.2f}, {_num_requests(result)} requests, {len(experiment.seeds)} seeds"
    )
    return "\n".join([head, *lines, f"bound: {bound}"])


def _cell(mean: object, field: str) -> str:
    value = float(getattr(mean, field))
    return f"{value:.1%}" if field in _SHARES else f"{value:.4g}"


def _num_requests(result: Result) -> int:
    return len(next(iter(result.first.values())).records)


def _settings(experiment: Experiment, *, num_requests: int) -> Settings:
    workload, physics, cost_set = experiment.workload, experiment.physics, experiment.cost_set
    generated = None if isinstance(workload, Trace) else workload
    return Settings(
        costs=cost_set.name,
        sources=cost_set.sources,
        widths=experiment.widths,
        mix=generated.mix if generated else None,
        deadlines=asdict(generated.deadlines) if generated else None,
        requests=num_requests,
        seeds=experiment.seeds,
        jitter=physics.jitter,
        dispatch_s=physics.dispatch_s,
        plan_s=physics.plan_s,
        migration_s=cost_set.migration.latency_s,
        clairvoyant=physics.clairvoyant,
    )
