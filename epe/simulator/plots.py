"""Three pictures of an experiment: attainment against load, the latency CDF, and lanes over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from epe.simulator.experiment import Result
from epe.simulator.outcome import Outcome, Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The lanes of a whole run cannot be seen; this many best latencies can.
_SHOWN_LATENCIES = 12.0


def plot(results: Sequence[Result], path: str) -> None:
    """Draw all panels into one file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    last = results[-1]
    figure, panels = pyplot.subplots(
        2 + len(last.first), 1, figsize=(9, 8 + 2.2 * len(last.first)), layout="constrained"
    )
    _attainment(panels[0], results)
    _latencies(panels[1], last)
    for panel, outcome in zip(panels[2:], last.first.values(), strict=True):
        draw_lanes(panel, outcome)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _attainment(panel: Axes, results: Sequence[Result]) -> None:
    loads = [result.load for result in results]
    for name in results[0].policies:
        means = [result.policies[name].mean.slo_attainment for result in results]
        ends = [result.policies[name].ci95["slo_attainment"] for result in results]
        spread = [[m - low for m, (low, _) in zip(means, ends, strict=True)],
                  [high - m for m, (_, high) in zip(means, ends, strict=True)]]  # fmt: skip
        panel.errorbar(loads, means, yerr=spread, marker="o", capsize=3, label=name)
    known = [(r.load, r.bound.slo_attainment) for r in results if r.bound.slo_attainment is not None]
    if known:
        panel.plot(*zip(*known, strict=True), "k_--", markersize=12, label="bound")
    panel.set(xlabel="offered load", ylabel="share in time", ylim=(0, 1.02), title=_title(results[0]))
    panel.legend(fontsize="small")


def _latencies(panel: Axes, result: Result) -> None:
    for name, outcome in result.first.items():
        order = sorted(record.normalized_latency for record in outcome.records if record.end == "finished")
        shares = [(place + 1) / len(order) for place in range(len(order))]
        panel.step(order, shares, where="post", label=name)
    panel.set(xscale="log", xlabel="latency / best latency alone", ylabel="share of requests", ylim=(0, 1.02))
    panel.legend(fontsize="small")


def draw_lanes(panel: Axes, outcome: Outcome) -> None:
    """A stretch from the middle of the arrivals, the same for every policy: one row a rank, one colour a request;
    encode and decode are hatched."""
    begin_s = (outcome.begin_s + max(record.arrival_s for record in outcome.records)) / 2
    best = sorted(record.best_s for record in outcome.records)[len(outcome.records) // 2]
    end_s = begin_s + _SHOWN_LATENCIES * best
    for work in outcome.work:
        if work.end_s > begin_s and work.begin_s < end_s:
            _bar(panel, work)
    panel.set(xlim=(begin_s, end_s), xlabel="seconds", ylabel="rank", title=f"lanes of {outcome.policy}")
    panel.set_yticks(range(outcome.world_size))
    panel.invert_yaxis()


def _bar(panel: Axes, work: Work) -> None:
    from matplotlib import colormaps

    colours: Any = colormaps["tab20"]
    for rank in work.ranks:
        panel.barh(
            rank,
            work.end_s - work.begin_s,
            left=work.begin_s,
            height=1.0 if len(work.ranks) > 1 else 0.8,
            color=colours(crc32(work.request_id.encode()) % 20),
            hatch=None if work.num_steps else "//",
        )


def _title(result: Result) -> str:
    experiment = result.experiment
    return f"{experiment.name} on {experiment.world_size} ranks of {experiment.cost_set.name}"
