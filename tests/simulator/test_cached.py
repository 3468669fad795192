"""A planner that knows which steps FlexCache makes keeps more deadlines than one that does not."""

from __future__ import annotations

from msgspec.structs import replace

from epe.messages import MagCache, Reuse
from epe.simulator.arrivals import best_s, single_s
from epe.simulator.engine import simulate
from epe.simulator.metrics import Metrics, measure
from epe.simulator.policies import policy_of
from epe.simulator.published import PUBLISHED
from epe.simulator.workloads import WorkloadSpec, generate, rescaled

WORLD = 8


def metrics(*, knows_reuse: bool, seed: int) -> Metrics:
    """Sixty requests that compute every second step, with twice the time that they take at best."""
    cost_set = PUBLISHED["flux"]()
    plain = generate(WorkloadSpec(num_requests=60), cost_set, world_size=WORLD, seed=seed)
    costs = cost_set.table({arrival.workload for arrival in plain}, world_size=WORLD)
    arrivals = []
    for arrival in plain:
        computed = tuple(range(0, arrival.request.num_steps, 2))
        best = best_s(costs, arrival.workload, num_steps=len(computed))
        reuse = Reuse(strategy=MagCache(), computed=computed)
        arrivals.append(
            replace(
                arrival,
                request=replace(arrival.request, reuse=reuse, deadline_s=2 * best),
                single_s=single_s(costs, arrival.workload, num_steps=len(computed)),
                best_s=best,
            )
        )
    outcome = simulate(
        rescaled(arrivals, world_size=WORLD, load=0.9),
        policy=policy_of("elastic", widths=cost_set.widths(WORLD), world_size=WORLD),
        name="elastic",
        costs=costs,
        truth=cost_set.table({arrival.workload for arrival in plain}, world_size=WORLD),
        world_size=WORLD,
        correct_costs=True,
        knows_reuse=knows_reuse,
    )
    return measure(outcome)


def test_knowing_which_steps_are_computed_keeps_more_deadlines() -> None:
    knowing = [metrics(knows_reuse=True, seed=seed).slo_attainment for seed in (1, 2)]
    not_knowing = [metrics(knows_reuse=False, seed=seed).slo_attainment for seed in (1, 2)]
    assert sum(knowing) > sum(not_knowing) + 0.1
