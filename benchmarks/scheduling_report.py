"""The page of results: made of the lines of runs alone, so that it says what was run and nothing else."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from scheduling_cells import CELLS, Cell
from scheduling_entrants import GRIDS, NUM_TRIES, OURS
from scheduling_jobs import TUNING_REQUESTS, TUNING_SEED, Effort
from scheduling_markdown import percent, points, table
from scheduling_offline import Offline
from scheduling_plots import draw
from scheduling_runs import DISPATCH_S, PLAN_S, Line
from scheduling_shortfall import looseness, shortfalls
from scheduling_sweeps import gfdit, sweeps
from scheduling_verdicts import FIELDS, Compared, Lines, Verdict, compare, judge
from scheduling_versions import MARK, Versions


def write(
    lines: Sequence[Line],
    *,
    tried: Sequence[Line],
    versions: Versions,
    effort: Effort,
    page: Path,
    offline: Sequence[Offline] = (),
) -> None:
    """The page, and its plots beside it; `tried` are the lines of tuning, `offline` those of short runs."""
    found = Lines(lines, num_requests=effort.num_requests)
    compared = {field: _compared(found, effort, field) for field in FIELDS}
    plots = draw(lines, found, effort=effort, folder=page.parent)
    parts = [
        _head(lines, tried, versions.told(found, effort), compared["slo_attainment"], effort),
        _verdicts(compared),
        *(_cells(compared[field], field) for field in FIELDS),
        shortfalls(compared["slo_attainment"]),
        looseness(offline),
        _losses(found, compared, effort),
        _latencies(found, compared["slo_attainment"], effort),
        _everybody(found, versions, effort),
        *plots,
        sweeps(lines, effort.tuned),
        gfdit(lines),
        _LIMITS,
    ]
    page.write_text("\n\n".join(part for part in parts if part) + "\n")


def _compared(found: Lines, effort: Effort, field: str) -> list[Compared]:
    each = (compare(found, cell, effort.baselines(cell.name), field) for cell in effort.cells)
    return [compared for compared in each if compared is not None]


def _head(
    lines: Sequence[Line],
    tried: Sequence[Line],
    changed: str,
    compared: Sequence[Compared],
    effort: Effort,
) -> str:
    counts = sorted(each.num_baselines for each in compared) or [0]
    seeds = sorted({each.num_seeds for each in compared}) or [0]
    run_h, tuned_h = (sum(line.took_s for line in each) / 3600 for each in (lines, tried))
    return f"""# Schedulers compared

`python benchmarks/scheduling.py report`, {datetime.date.today()}, from {len(lines)} runs and {len(tried)} tries of \
tuning: {run_h:.1f} and {tuned_h:.1f} hours of processor time, so {(run_h + tuned_h) / 2:.1f} hours on two cores. All \
is simulated: the machine changes only these hours, and how tight the bound is.{changed}

**What was run.** {len(compared)} of {len(CELLS)} cells, each with {_range(seeds)} seeds of {effort.num_requests} \
requests, the same for everybody; {_range(counts)} of {len(GRIDS) + 1} baselines in a cell: those that did best when \
they were tuned. The cells (`benchmarks/scheduling_cells.py`) were named before anything was tuned: costs and ranks \
(`qwen` 4, the others 8), arrivals, mix, offered load, deadlines (`x2` is twice the best latency alone, `gfdit` \
GF-DiT's multiples of that on one rank). Costs are published figures that nobody here measured \
([simulator](../simulator.md)). A lease takes {1e3 * DISPATCH_S:g} ms to its ranks and a plan {1e3 * PLAN_S:g} ms.

**Tuning.** Every baseline had {NUM_TRIES} tries in each cell over its own settings (static lanes: every width), on \
{TUNING_REQUESTS} requests of seed {TUNING_SEED}, which is used for nothing else; the best mean of requests and work \
in time was taken (the grids: `benchmarks/scheduling_entrants.py`; what they found: \
`benchmarks/scheduling_tuned.json`). `elastic` has one configuration for all: its defaults."""


def _range(counts: Sequence[int]) -> str:
    return f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _verdicts(compared: dict[str, list[Compared]]) -> str:
    verdicts = [verdict for field in FIELDS for verdict in judge(compared[field], field=field)]
    rows = [[verdict.asked, verdict.found, _word(verdict)] for verdict in verdicts]
    return "## What was asked for\n\n" + table(["asked", "found", "reached"], rows)


def _word(verdict: Verdict) -> str:
    return {True: "yes", False: "**no**", None: "-"}[verdict.reached]


def _cells(compared: Sequence[Compared], field: str) -> str:
    """Percent; the interval is that of the difference, seed by seed."""
    attains = field == "slo_attainment"
    head = ["cell", "elastic", "best baseline", "its name", "difference", "95 %"]
    head += ["clairvoyant elastic", "bound"] if attains else []
    rows = [_cell_row(each, attains=attains) for each in compared]
    note = "Percent of requests" if attains else "Percent of work (rank-seconds on one rank)"
    return (
        f"## {FIELDS[field].capitalize()}\n\n{note}; the difference in points, with its interval over the seeds "
        f"(the same requests on both sides).\n\n" + table(head, rows)
    )


def _cell_row(each: Compared, *, attains: bool) -> list[str]:
    row = [
        each.cell,
        percent(each.ours),
        percent(each.best),
        each.best_name,
        points(each.difference),
        f"{points(each.low)} to {points(each.high)}",
    ]
    return [*row, percent(each.clairvoyant), percent(each.bound)] if attains else row


def _losses(found: Lines, compared: dict[str, list[Compared]], effort: Effort) -> str:
    """Every cell where the mean is below, worst first."""
    below = [
        (each, what) for field, what in FIELDS.items() for each in compared[field] if each.difference < 0
    ]
    below.sort(key=lambda pair: pair[0].difference)
    if not below:
        return "## Where it loses\n\nIn no cell that was run."
    rows = [
        [
            each.cell,
            what,
            points(each.difference),
            each.best_name,
            "chance" if each.within_or_above else "more than chance",
            _classes(found, each, effort),
        ]
        for each, what in below
    ]
    head = ["cell", "what", "points", "to", "explained by", "in time by class: elastic / best"]
    return "## Where it loses\n\n" + table(head, rows)


def _classes(found: Lines, each: Compared, effort: Effort) -> str:
    """Who pays for whom."""
    best = next(entrant for entrant in effort.baselines(each.cell) if entrant.name == each.best_name)
    ours, theirs = found.classes(each.cell, OURS), found.classes(each.cell, best)
    return ", ".join(f"{name} {percent(ours[name])} / {percent(theirs[name])}" for name in ours)


def _latencies(found: Lines, compared: Sequence[Compared], effort: Effort) -> str:
    """Of all finished requests, those that were late included."""
    fields = ("mean_latency_s", "p99_latency_s", "starved", "migrations_per_request")
    rows = []
    for each in compared:
        best = next(e for e in effort.baselines(each.cell) if e.name == each.best_name)
        row = [each.cell]
        for field in fields:
            ours, theirs = found.mean(each.cell, OURS, field), found.mean(each.cell, best, field)
            row.append(f"{ours:.3g} / {theirs:.3g}")
        rows.append(row)
    head = ["cell", "mean s", "P99 s", "starved", "moves a request"]
    note = "`elastic` / the baseline with most requests in time; seconds of all requests, late ones included."
    return f"## Latency\n\n{note}\n\n" + table(head, rows) if rows else ""


def _everybody(found: Lines, versions: Versions, effort: Effort) -> str:
    """Attainment of each baseline; what was not run stands with its tuning run in brackets."""
    names = ["static-sp", *GRIDS]
    rows = [
        [cell.name, *_of_each(found, versions, effort, cell, names)]
        for cell in effort.cells
        if cell.name in effort.tuned
    ]
    note = (
        "Percent of requests in time. In brackets: not run on the seeds; what the best try reached in tuning."
    )
    return f"## Every scheduler\n\n{note}\n\n" + table(["cell", "elastic", *names], rows)


def _of_each(found: Lines, versions: Versions, effort: Effort, cell: Cell, names: Sequence[str]) -> list[str]:
    tuned = {each.entrant.name: each for each in effort.tuned[cell.name]}
    tries = [None, *(tuned[name].slo_attainment for name in names)]
    entrants = [OURS, *(tuned[name].entrant for name in names)]
    shares = [found.mean(cell.name, entrant, "slo_attainment") for entrant in entrants]
    marks = [MARK * versions.is_older_of(found, cell, entrant) for entrant in entrants]
    return [
        f"({percent(in_tuning)})" if share is None and in_tuning is not None else percent(share) + mark
        for share, in_tuning, mark in zip(shares, tries, marks, strict=True)
    ]


_LIMITS = """## What this does not show

One pool of ranks without topology; no failures, batches or HTTP; no limit of memory. The other schedulers are our own \
versions of what their papers and repositories say, on our interface, where leases can be sent ahead; each module in \
`epe/simulator/baselines` says what was known. The bound cuts a seed into blocks of 200 requests that each have the \
world to themselves and lets requests take any width at any moment, so part of the gap to it cannot be closed."""
