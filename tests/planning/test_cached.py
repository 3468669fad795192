"""Steps that FlexCache makes without the model cost nothing in a plan, and are no lease of their own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from epe.config.stage import Scheduler
from epe.messages import MagCache, Pab, Reuse, TeaCache
from epe.planning.pace import Paces
from epe.planning.policies import BUILT_IN, make_policy
from epe.planning.prediction import Ahead, predicted_finish_s
from epe.planning.work import steps_for
from tests.planning.contract import fault_of
from tests.planning.views import costs, trajectory, view

EVERY_FOURTH = Reuse(strategy=MagCache(), computed=tuple(range(0, 20, 4)))


def test_what_is_left_counts_computed_steps_alone() -> None:
    paces = Paces(costs(), widths=(1,), num_ranks=1)
    whole, cached = trajectory("a"), trajectory("b", reuse=EVERY_FOURTH)
    decode_s = paces.of(whole).decode_s
    ratio = (paces.of(cached).remaining_s(cached, 1) - decode_s) / (
        paces.of(whole).remaining_s(whole, 1) - decode_s
    )
    assert ratio == pytest.approx(5 / 20)


def test_a_lease_takes_the_steps_that_cost_nothing_along() -> None:
    table = costs()
    step_s = table.seconds(next(key for key in table.measured if key.tokens == 1024 and key.width == 1))
    taken = [
        steps_for(table, trajectory("a", step=step, reuse=EVERY_FOURTH), 1, pulse_s=pulse_s, pulse_steps=1)
        for step, pulse_s in ((0, 0.0), (4, 2.1 * step_s), (17, 0.0), (16, 9.0))
    ]
    assert taken == [4, 8, 3, 4]


def test_a_step_that_is_decided_on_later_counts_in_full() -> None:
    unknown = Reuse(strategy=TeaCache(coefficients=(1.0,)), computed=(0, 19))
    assert trajectory("a", reuse=unknown).num_computed_left == 20
    assert trajectory("a", step=18, reuse=unknown).steps_with(5) == 2


def test_the_finish_of_a_cached_request_is_predicted_earlier() -> None:
    waiting = [trajectory("a"), trajectory("b", reuse=EVERY_FOURTH)]
    ends = [predicted_finish_s(view(*waiting, world=1), each, ahead=Ahead(), widths=(1,)) for each in waiting]
    assert ends[1] < ends[0] / 2


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_policy_lets_a_lease_end_where_attention_is_used_again(name: str) -> None:
    pab = Reuse(strategy=Pab(), computed=tuple(range(20)), joints=(0, 1, 7, 13, 19), kinds=("self", "cross"))
    scheduler = Scheduler(policy=name, allowed_lane_widths=(1, 2, 4), warmup_resolutions=())
    policy = make_policy(scheduler, widths=(1, 2, 4))
    for step in (0, 1, 7, 19):
        seen = view(trajectory("a", reuse=pab, step=step))
        plan = policy.plan(seen)
        assert step + plan[0].num_steps in (1, 7, 13, 19, 20)
        assert fault_of(seen, plan) is None
    (assignment,) = plan
    assert "uses what only a lease keeps" in str(
        fault_of(view(trajectory("a", reuse=pab, step=1)), (replace(assignment, num_steps=3),))
    )


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_leases_whole_stretches(name: str) -> None:
    scheduler = Scheduler(policy=name, allowed_lane_widths=(1, 2, 4), warmup_resolutions=())
    policy = make_policy(scheduler, widths=(1, 2, 4))
    (assignment, *_) = policy.plan(view(trajectory("a", reuse=EVERY_FOURTH, step=4)))
    end = 4 + assignment.num_steps
    assert end == 20 or EVERY_FOURTH.computes(end), "the next lease begins with a step that costs something"
