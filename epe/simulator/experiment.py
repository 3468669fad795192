"""Policies against each other on the same requests: every seed of a workload under every policy, and the bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from epe.planning.trace_line import TraceLine
from epe.simulator.arrivals import Arrival
from epe.simulator.bounds import Bound, fluid_bound
from epe.simulator.costs import CostSet
from epe.simulator.engine import simulate
from epe.simulator.machine import Physics
from epe.simulator.metrics import (
    ClassMetrics,
    Metrics,
    Spread,
    mean_classes,
    measure,
    measure_classes,
    spread,
)
from epe.simulator.outcome import Outcome
from epe.simulator.policies import policy_of
from epe.simulator.traces import trace_arrivals
from epe.simulator.workloads import WorkloadSpec, generate, load_of, rescaled


class Trace(Struct, frozen=True, kw_only=True):
    """A workload from a file; at its own load if `load` is None."""

    path: str
    lines: tuple[TraceLine, ...]
    load: float | None = None


class Experiment(Struct, frozen=True, kw_only=True):
    """One cell: a workload on a machine. `bound` is the fluid programme, or what `elastic` reaches when it knows
    which requests will come, or none."""

    workload: WorkloadSpec | Trace
    cost_set: CostSet
    world_size: int
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    physics: Physics = Physics()
    correct_costs: bool = False
    bound: Literal["fluid", "clairvoyant", "none"] = "fluid"
    bound_limit_s: float = 20.0

    @property
    def widths(self) -> tuple[int, ...]:
        return self.cost_set.widths(self.world_size)

    @property
    def name(self) -> str:
        return self.workload.path if isinstance(self.workload, Trace) else self.workload.name

    def arrivals(self, seed: int) -> tuple[Arrival, ...]:
        """The requests of a seed, the same for every policy."""
        match self.workload:
            case WorkloadSpec() as spec:
                return generate(spec, self.cost_set, world_size=self.world_size, seed=seed)
            case Trace(path=path, lines=lines, load=load):
                world = self.world_size
                arrivals = trace_arrivals(lines, self.cost_set, path=path, world_size=world, seed=seed)
                return arrivals if load is None else rescaled(arrivals, world_size=world, load=load)


class Result(Struct, frozen=True, kw_only=True):
    """What an experiment found. `first` are the runs of the first seed, for plots."""

    experiment: Experiment
    load: float
    policies: dict[str, Spread]
    classes: dict[str, dict[str, ClassMetrics]]
    bound: Bound
    first: dict[str, Outcome]


def run(experiment: Experiment, *, tell: Callable[[str], None] = lambda line: None) -> Result:
    """Run it; `tell` hears of each run that is done."""
    runs: dict[str, list[Metrics]] = {name: [] for name in experiment.policies}
    classes: dict[str, list[dict[str, ClassMetrics]]] = {name: [] for name in experiment.policies}
    first: dict[str, Outcome] = {}
    bounds, loads = [], []
    for seed in experiment.seeds:
        arrivals = experiment.arrivals(seed)
        loads.append(load_of(arrivals, world_size=experiment.world_size))
        for name in experiment.policies:
            outcome = run_once(experiment, arrivals, name=name, seed=seed)
            first.setdefault(name, outcome)
            runs[name].append(measure(outcome))
            classes[name].append(measure_classes(outcome))
            tell(f"seed {seed}, {name}: {runs[name][-1].slo_attainment:.1%} in time")
        bounds.append(_bound(experiment, arrivals, seed=seed))
    return Result(
        experiment=experiment,
        load=fmean(loads),
        policies={name: spread(each) for name, each in runs.items()},
        classes={name: mean_classes(each) for name, each in classes.items()},
        bound=_mean_bound(bounds),
        first=first,
    )


def run_once(experiment: Experiment, arrivals: Sequence[Arrival], *, name: str, seed: int) -> Outcome:
    """One policy, one seed, with a fresh policy and a fresh cost table."""
    world, cost_set = experiment.world_size, experiment.cost_set
    workloads = {arrival.workload for arrival in arrivals}
    return simulate(
        arrivals,
        policy=policy_of(name, widths=experiment.widths, world_size=world),
        name=name,
        costs=cost_set.table(workloads, world_size=world),
        truth=cost_set.table(workloads, world_size=world),
        world_size=world,
        physics=replace(experiment.physics, seed=seed),
        finish_s=cost_set.finish_s,
        correct_costs=experiment.correct_costs,
        decode_widths=cost_set.decode_widths(world),
    )


def _bound(experiment: Experiment, arrivals: Sequence[Arrival], *, seed: int) -> Bound:
    match experiment.bound:
        case "none":
            return Bound(slo_attainment=None, kind="none")
        case "clairvoyant":
            return _clairvoyant(experiment, arrivals, seed=seed)
        case _:
            return _fluid(experiment, arrivals)


def _clairvoyant(experiment: Experiment, arrivals: Sequence[Arrival], *, seed: int) -> Bound:
    """What our own planner reaches when it knows what will come: no bound, but it can be reached."""
    knowing = replace(experiment, physics=replace(experiment.physics, clairvoyant=True))
    outcome = run_once(knowing, arrivals, name="elastic", seed=seed)
    return Bound(slo_attainment=measure(outcome).slo_attainment, kind="elastic, knowing what comes")


def _fluid(experiment: Experiment, arrivals: Sequence[Arrival]) -> Bound:
    world, cost_set = experiment.world_size, experiment.cost_set
    return fluid_bound(
        arrivals,
        cost_set.table({arrival.workload for arrival in arrivals}, world_size=world),
        world_size=world,
        finish_s=cost_set.finish_s,
        time_limit_s=experiment.bound_limit_s,
    )


def _mean_bound(bounds: list[Bound]) -> Bound:
    """A bound holds for each seed, so their mean holds for the mean; it is called after the weakest of them."""
    shares = [bound.slo_attainment for bound in bounds if bound.slo_attainment is not None]
    kind = next((bound.kind for bound in bounds if "dual" in bound.kind), bounds[0].kind)
    return Bound(slo_attainment=fmean(shares) if shares else None, kind=kind)
