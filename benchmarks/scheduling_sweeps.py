"""Beside the cells: how the gain changes with size, share of videos, steps and load, and GF-DiT's claim."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct
from scheduling_cells import GFDIT_CELLS, SWEEPS, Cell
from scheduling_entrants import OURS, STATIC_SP4, Entrant, Tuned
from scheduling_jobs import GFDIT_SEEDS, NUM_REQUESTS, SWEEP_REQUESTS, SWEEP_SEEDS, sweep_entrants
from scheduling_markdown import change, percent, points, table
from scheduling_runs import Line
from scheduling_verdicts import FIELDS, Compared, Lines, compare

from epe.messages import Stage
from epe.simulator.costs import CostSet, Size
from epe.simulator.mixes import mix_of


class Claim(Struct, frozen=True, kw_only=True):
    """A figure of GF-DiT's abstract (arXiv 2606.13501), "up to", as a factor of what static SP4 gives."""

    what: str
    factor: float
    more_is_better: bool = False

    def reached_by(self, factor: float) -> bool:
        return factor >= self.factor if self.more_is_better else factor <= self.factor


CLAIMS = {
    "throughput_rps": Claim(what="throughput", factor=6.01, more_is_better=True),
    "mean_latency_s": Claim(what="mean latency", factor=0.05),
    "violations": Claim(what="violations", factor=0.10),
}


def sweeps(lines: Sequence[Line], tuned: dict[str, list[Tuned]]) -> str:
    """One table a sweep, of those that were run."""
    found = Lines(lines, num_requests=SWEEP_REQUESTS)
    parts = [_sweep(name, cells, found, tuned) for name, cells in SWEEPS.items()]
    parts = [part for part in parts if part]
    if not parts:
        return ""
    note = (
        f"{len(SWEEP_SEEDS)} seeds of {SWEEP_REQUESTS} requests; the baselines are the best three of a cell with the "
        "same costs, as they were tuned there."
    )
    return "\n\n".join(["## Sweeps", note, *parts])


def _sweep(name: str, cells: Sequence[Cell], found: Lines, tuned: dict[str, list[Tuned]]) -> str:
    rows = []
    for cell in cells:
        each = [compare(found, cell, sweep_entrants(cell, tuned), field) for field in FIELDS]
        known = [compared for compared in each if compared is not None]
        if len(known) == len(FIELDS):
            rows.append([cell.name, *(text for compared in known for text in _three(compared))])
    head = [
        "cell",
        *(f"{what}: {who}" for what in FIELDS.values() for who in ("elastic", "best baseline", "points")),
    ]
    return f"### By {name}\n\n" + table(head, rows) if rows else ""


def _three(compared: Compared) -> list[str]:
    best = f"{percent(compared.best)} ({compared.best_name})"
    return [percent(compared.ours), best, points(compared.difference)]


def gfdit(lines: Sequence[Line]) -> str:
    """Against static SP4, in the classes, with the deadlines and at the loads of the paper."""
    found = Lines(lines, num_requests=NUM_REQUESTS)
    factors = {cell.name: _factors(found, cell) for cell in GFDIT_CELLS}
    run = {name: each for name, each in factors.items() if each}
    if not run:
        return ""
    rows = [[name, *(_factor(field, each[field]) for field in CLAIMS)] for name, each in run.items()]
    head = ["cell", *(claim.what for claim in CLAIMS.values())]
    claimed = [
        [claim.what, _factor(field, claim.factor), *_best(field, claim, run)]
        for field, claim in CLAIMS.items()
    ]
    note = (
        "Qwen-Image on 4 ranks in its three classes, with its deadlines (1.5, 2 and 6 times the latency on one rank) "
        f"and loads; `elastic` against static SP4, both on {len(GFDIT_SEEDS)} seeds of {NUM_REQUESTS} requests. The "
        f"classes come in the mix `small`. In a long run throughput can at most grow by what wide lanes waste: "
        f"{_most_throughput():.2f} times here, if every request ran on one rank and no rank ever idled."
    )
    return "\n\n".join(
        [
            "## GF-DiT's claim against static SP4",
            note,
            table(head, rows),
            table(["what", "claimed, up to", "most here", "where", "reached"], claimed),
        ]
    )


def _factors(found: Lines, cell: Cell) -> dict[str, float]:
    """Ours over static SP4, of the means over the seeds; empty if it was not run."""
    ours, theirs = (_means(found, cell, entrant) for entrant in (OURS, STATIC_SP4))
    return (
        {field: ours[field] / theirs[field] if theirs[field] else 1.0 for field in CLAIMS}
        if ours and theirs
        else {}
    )


def _means(found: Lines, cell: Cell, entrant: Entrant) -> dict[str, float]:
    metrics = [line.metrics for line in found.of(cell.name, entrant).values() if line.metrics]
    if not metrics:
        return {}
    return {
        "throughput_rps": fmean(each.throughput_rps for each in metrics),
        "mean_latency_s": fmean(each.mean_latency_s for each in metrics),
        "violations": 1 - fmean(each.slo_attainment for each in metrics),
    }


def _factor(field: str, factor: float) -> str:
    return f"{factor:.2f}x" if CLAIMS[field].more_is_better else change(factor)


def _best(field: str, claim: Claim, run: dict[str, dict[str, float]]) -> list[str]:
    """The largest gain, where it is, and whether it is what was claimed."""
    pick = max if claim.more_is_better else min
    name = pick(run, key=lambda cell: run[cell][field])
    factor = run[name][field]
    return [_factor(field, factor), name, "yes" if claim.reached_by(factor) else "no"]


def _most_throughput() -> float:
    """Rank-seconds of the mix on lanes of four, over those on one rank."""
    cell = GFDIT_CELLS[0]
    mix = mix_of(cell.workload.mix, cell.cost_set)
    wide = sum(
        share * 4 * _lane_s(cell.cost_set, size) for share, size in zip(mix.shares, mix.sizes, strict=True)
    )
    return wide / mix.mean_s


def _lane_s(cost_set: CostSet, size: Size) -> float:
    """How long a request keeps a static lane of four: encode and decode run on one of its ranks."""
    tasks = [(Stage.ENCODE, 1, 1), (Stage.DENOISE, 4, size.num_steps), (Stage.DECODE, 1, 1)]
    return sum(
        times * (cost_set.seconds(size.workload, stage, width) or 0.0) for stage, width, times in tasks
    )
