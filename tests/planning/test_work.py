"""What fits into a rank's memory, and what a prediction rests on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from epe.messages import Stage
from epe.planning.costs import CostKey, CostTable, Workload
from epe.planning.policies import BUILT_IN
from epe.planning.view import Assignment
from epe.planning.work import basis_of, too_large, with_barred
from epe.simulator.policies import policy_of
from tests.planning.contract import fault_of
from tests.planning.views import costs as all_costs
from tests.planning.views import trajectory, view

WIDTHS = (1, 2, 4)
WORKLOAD = Workload(tokens=1024, conditions=2)


def table(**peaks: int) -> CostTable:
    """A rank has 1000 bytes; steps need `w1`, `w2`, `w4` of them, an encode `encode`."""
    costs = all_costs()
    costs.memory.limit_bytes = 1000
    for name, peak in peaks.items():
        stage, width = (Stage.ENCODE, 1) if name == "encode" else (Stage.DENOISE, int(name[1:]))
        costs.memory.enter(CostKey(stage=stage, tokens=1024, width=width, conditions=2), peak)
    return costs


def test_widths_that_do_not_fit_are_barred_where_another_one_does():
    assert with_barred(table(w1=3000, w2=1500, w4=800), WORKLOAD, WIDTHS).barred == (1, 2)
    assert with_barred(table(w1=300, w2=150, w4=80), WORKLOAD, WIDTHS).barred == ()
    assert with_barred(table(w1=9000, w2=4500, w4=2250), WORKLOAD, WIDTHS).barred == ()
    assert with_barred(all_costs(), WORKLOAD, WIDTHS) is WORKLOAD


def test_what_fits_nowhere_is_said_with_what_it_would_need():
    assert too_large(table(w1=3000, w4=800), WORKLOAD, WIDTHS) is None
    assert "denoise" in str(too_large(table(w1=9000, w2=4500, w4=2250), WORKLOAD, WIDTHS))
    assert "encode" in str(too_large(table(encode=2000), WORKLOAD, WIDTHS))


def test_what_a_lane_keeps_between_steps_counts_with_each_ranks_share():
    peaks, keeping = table(w1=300, w2=200, w4=150), replace(WORKLOAD, lent_bytes=1200)
    assert with_barred(peaks, keeping, WIDTHS).barred == (1,)
    assert too_large(peaks, keeping, WIDTHS) is None
    message = str(too_large(peaks, replace(WORKLOAD, lent_bytes=2**40), WIDTHS))
    assert "denoise would need 256 GiB" in message
    assert "ask for a smaller size, or for less reuse of attention" in message
    unmeasured = all_costs()
    unmeasured.memory.limit_bytes, unmeasured.memory.resident_bytes = 1000, 500
    assert too_large(unmeasured, replace(WORKLOAD, lent_bytes=2001), WIDTHS) is not None
    assert too_large(unmeasured, replace(WORKLOAD, lent_bytes=2000), WIDTHS) is None


def test_a_plan_that_does_not_fit_is_a_fault():
    barred = with_barred(table(w1=3000, w2=1500, w4=800), WORKLOAD, WIDTHS)
    now = view(trajectory("a", workload=barred))
    narrow, wide = (Assignment(request_id="a", ranks=ranks, num_steps=1) for ranks in ((0,), (0, 1, 2, 3)))
    assert "lanes of 1 ranks are barred" in str(fault_of(now, (narrow,)))
    assert fault_of(now, (wide,)) is None


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "static_dp"])
@pytest.mark.parametrize("num_waiting", [1, 5])
def test_no_policy_plans_what_does_not_fit(name: str, num_waiting: int):
    costs = table(w1=3000, w2=1500, w4=800)
    barred = with_barred(costs, WORKLOAD, WIDTHS)
    requests = [trajectory(f"q{index}", workload=barred) for index in range(num_waiting)]
    now = view(*requests, costs=costs)
    plan = policy_of(name, widths=WIDTHS, world_size=4).plan(now)
    assert plan
    assert fault_of(now, plan) is None


def test_a_prediction_is_as_good_as_the_weakest_of_its_tasks():
    costs = all_costs(world=2)
    assert basis_of(costs, WORKLOAD, (1, 2)) == "measured"
    assert basis_of(costs, Workload(tokens=2048, conditions=2), (1, 2)) == "fitted"
    assert basis_of(costs, WORKLOAD, (1, 2, 4)) == "extrapolated"
    assert basis_of(CostTable(), WORKLOAD, (1,)) == "guessed"
