"""What is to be run for the page: which scheduler in which cell, on which seeds, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from scheduling_cells import CELL_OF, CELLS, GFDIT_CELLS, SWEEPS, Cell, in_turn
from scheduling_entrants import CLAIRVOYANT, OURS, STATIC_SP4, Entrant, Tuned, tries
from scheduling_runs import Job, Line

# No seed has two uses, and none was used before these cells were named.
SEEDS = (41, 42, 43, 44, 45)
SWEEP_SEEDS, GFDIT_SEEDS = (51, 52), (56, 57)
TUNING_SEED, TUNING_REQUESTS = 61, 200
NUM_REQUESTS, SWEEP_REQUESTS = 1000, 500
SWEEP_BASELINES = 3


class Effort(Struct, frozen=True, kw_only=True):
    """How much of it: `num_baselines` of each cell, the best tries first; `bound_limit_s` is of each seed."""

    tuned: dict[str, list[Tuned]]
    cells: tuple[Cell, ...] = CELLS
    num_requests: int = NUM_REQUESTS
    num_seeds: int = len(SEEDS)
    num_baselines: int = 99
    bound_limit_s: float = 10.0

    def baselines(self, cell: str) -> list[Entrant]:
        """As they were tuned in a cell, the best first."""
        return [each.entrant for each in self.tuned.get(cell, [])]

    def on_seeds(self, cell: Cell, entrant: Entrant | None) -> list[Job]:
        """An entrant, or without one the bound."""
        return [
            Job(
                cell=cell.name,
                seed=seed,
                num_requests=self.num_requests,
                entrant=entrant,
                limit_s=0.0 if entrant else self.bound_limit_s,
            )
            for seed in SEEDS[: self.num_seeds]
        ]


def tuning_jobs(cells: Sequence[Cell], *, num_requests: int = TUNING_REQUESTS) -> list[Job]:
    """Every try of every baseline, cell by cell."""
    return [
        Job(cell=cell.name, seed=TUNING_SEED, num_requests=num_requests, entrant=entrant)
        for cell in in_turn(cells)
        for entrant in tries(widths=cell.cost_set.widths(cell.world_size))
    ]


def best_tries(lines: Iterable[Line]) -> list[Tuned]:
    """The best try of each baseline in each cell; of equals the one that was made first."""
    best: dict[tuple[str, str], Tuned] = {}
    for line in lines:
        entrant, metrics = line.job.entrant, line.metrics
        if entrant is None or metrics is None:
            continue
        tuned = Tuned(
            cell=line.job.cell,
            entrant=entrant,
            slo_attainment=metrics.slo_attainment,
            weighted_goodput=metrics.weighted_goodput,
            mean_latency_s=metrics.mean_latency_s,
        )
        place = (tuned.cell, entrant.name)
        if place not in best or tuned.rank < best[place].rank:
            best[place] = tuned
    order = list(CELL_OF)
    return sorted(best.values(), key=lambda tuned: (order.index(tuned.cell), tuned.rank))


def _baselines(effort: Effort) -> list[Job]:
    """The best tuned one of every cell first, then the second of every cell, and so on."""
    return [
        job
        for place in range(effort.num_baselines)
        for cell in in_turn(effort.cells)
        for each in effort.tuned.get(cell.name, [])[place : place + 1]
        for job in effort.on_seeds(cell, each.entrant)
    ]


def _everywhere(entrant: Entrant | None) -> Callable[[Effort], list[Job]]:
    return lambda effort: [job for cell in in_turn(effort.cells) for job in effort.on_seeds(cell, entrant)]


def sweep_entrants(cell: Cell, tuned: dict[str, list[Tuned]]) -> list[Entrant]:
    """The best baselines of the cell that this one is like."""
    return [each.entrant for each in tuned.get(cell.like, [])[:SWEEP_BASELINES]]


def _sweeps(effort: Effort) -> list[Job]:
    return [
        Job(cell=cell.name, seed=seed, num_requests=SWEEP_REQUESTS, entrant=entrant)
        for sweep in SWEEPS.values()
        for cell in sweep
        for entrant in (OURS, *sweep_entrants(cell, effort.tuned))
        for seed in SWEEP_SEEDS
    ]


def _gfdit(effort: Effort) -> list[Job]:
    return [
        Job(cell=cell.name, seed=seed, num_requests=NUM_REQUESTS, entrant=entrant)
        for cell in GFDIT_CELLS
        for entrant in (OURS, STATIC_SP4)
        for seed in GFDIT_SEEDS
    ]


def again(effort: Effort) -> list[Job]:
    """Of each cell our planner and the best tuned baseline on the first seed: what shows whether a change of the code
    alters schedules."""
    return [
        job
        for cell in in_turn(effort.cells)
        for entrant in (OURS, *effort.baselines(cell.name)[:1])
        for job in effort.on_seeds(cell, entrant)[:1]
    ]


# In the order in which `run` does them: the baselines and the bound do not change when our planner does.
PARTS: dict[str, Callable[[Effort], list[Job]]] = {
    "baselines": _baselines,
    "bounds": _everywhere(None),
    "elastic": _everywhere(OURS),
    "gfdit": _gfdit,
    "sweeps": _sweeps,
    "clairvoyant": _everywhere(CLAIRVOYANT),
}
