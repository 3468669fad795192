"""The page's pictures: attainment against load, latencies, and lanes over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import matplotlib
from scheduling_cells import SWEEPS
from scheduling_entrants import OURS, Entrant
from scheduling_jobs import SEEDS, SWEEP_REQUESTS, Effort, sweep_entrants
from scheduling_runs import Job, Line, outcome_of
from scheduling_verdicts import Lines, compare

from epe.simulator.metrics import interval
from epe.simulator.plots import draw_lanes

matplotlib.use("Agg")
from matplotlib import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LANES_REQUESTS = 100


def draw(lines: Sequence[Line], found: Lines, *, effort: Effort, folder: Path) -> list[str]:
    """Each a part of the page; none for what was not run."""
    parts = []
    if figure := _loads(Lines(lines, num_requests=SWEEP_REQUESTS), effort):
        parts.append(_kept(figure, folder / "scheduling-load.png", "Requests in time against offered load"))
    for cell in effort.cells:
        best = compare(found, cell, effort.baselines(cell.name), "slo_attainment")
        if best is None:
            continue
        baseline = next(each for each in effort.baselines(cell.name) if each.name == best.best_name)
        entrants = [OURS, baseline]
        figure = _latencies(found, cell.name, effort)
        parts.append(_kept(figure, folder / "scheduling-latency.png", f"Latencies in {cell.name}"))
        figure = _lanes(cell.name, entrants)
        parts.append(
            _kept(figure, folder / "scheduling-lanes.png", f"Lanes in {cell.name}: colours are requests")
        )
        break
    return parts


def _kept(figure: pyplot.Figure, path: Path, title: str) -> str:
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return f"![{title}]({path.name})"


def _loads(found: Lines, effort: Effort) -> pyplot.Figure | None:
    cells = SWEEPS["load"]
    entrants = [OURS, *sweep_entrants(cells[0], effort.tuned)]
    known = [cell for cell in cells if all(found.of(cell.name, entrant) for entrant in entrants)]
    if not known:
        return None
    figure, panel = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for entrant in entrants:
        values = [list(found.values(cell.name, entrant, "slo_attainment").values()) for cell in known]
        means = [fmean(each) for each in values]
        half = [(high - low) / 2 for low, high in map(interval, values)]
        loads = [cell.workload.load for cell in known]
        panel.errorbar(loads, means, yerr=half, marker="o", capsize=3, label=entrant.name)
    workload = known[0].workload
    title = f"{known[0].costs}, {workload.name}, {workload.mix}, deadlines x{workload.deadlines.scale:g}"
    panel.set(xlabel="offered load", ylabel="share in time", ylim=(0, 1.02), title=title)
    panel.legend(fontsize="small")
    return figure


def _latencies(found: Lines, cell: str, effort: Effort) -> pyplot.Figure:
    figure, panel = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for entrant in (OURS, *effort.baselines(cell)):
        if lines := found.of(cell, entrant):
            _cdf(panel, list(lines.values()), entrant.name)
    panel.set(
        xscale="log",
        xlabel="latency / best latency alone",
        ylabel="share of requests",
        ylim=(0, 1.02),
        title=cell,
    )
    panel.legend(fontsize="small")
    return figure


def _cdf(panel: Axes, lines: Sequence[Line], name: str) -> None:
    """The mean over the seeds of each quantile."""
    columns = zip(*(line.quantiles for line in lines), strict=True)
    values = [fmean(column) for column in columns]
    panel.plot(values, [place / (len(values) - 1) for place in range(len(values))], label=name)


def _lanes(cell: str, entrants: Sequence[Entrant]) -> pyplot.Figure:
    """A short run of the first seed, made anew: lanes are not kept with the results."""
    figure, panels = pyplot.subplots(len(entrants), 1, figsize=(9, 2.4 * len(entrants)), layout="constrained")
    for panel, entrant in zip(panels, entrants, strict=True):
        draw_lanes(
            panel, outcome_of(Job(cell=cell, seed=SEEDS[0], num_requests=LANES_REQUESTS, entrant=entrant))
        )
    return figure
