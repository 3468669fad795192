"""Every policy that EPE ships, and every one that it is compared with, keeps the contract."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import Phase, settings

from epe.config.stage import Scheduler
from epe.errors import BadSetting
from epe.planning.costs import CostTable, Workload
from epe.planning.last_resort import LastResort
from epe.planning.policies import BUILT_IN, make_policy
from epe.planning.pool import PoolSettings
from epe.planning.throughput import Throughput
from epe.planning.view import Assignment, Policy, View
from epe.simulator.baselines import BASELINES, BaselineSettings
from examples.own_policy import PicturesFirst
from tests.planning.contract import (
    WIDTHS,
    WORLD,
    check_every_plan_is_sound,
    check_every_request_ends,
    check_nothing_waits_while_all_ranks_idle,
    check_policy,
    plenty,
)
from tests.planning.own_policy import Lazy
from tests.planning.views import costs as known
from tests.planning.views import trajectory, view


def built_in(name: str) -> Policy:
    scheduler = Scheduler(policy=name, allowed_lane_widths=WIDTHS, warmup_resolutions=())
    return make_policy(scheduler, widths=WIDTHS)


def test_the_policy_of_the_example_keeps_the_contract():
    check_policy(PicturesFirst)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_policy_that_can_be_served_with_keeps_the_contract(name):
    check_policy(partial(built_in, name))


def test_the_last_resort_keeps_the_contract():
    check_policy(partial(LastResort, widths=WIDTHS))


def test_the_last_resort_keeps_the_contract_where_one_rank_is_no_allowed_width():
    check_policy(partial(LastResort, widths=(2, 4)))


@pytest.mark.parametrize("name", [name for name in BASELINES if name != "static-sp8"])
def test_a_baseline_keeps_the_contract(name):
    check_policy(partial(BASELINES[name], BaselineSettings(world_size=WORLD, widths=WIDTHS)))


@pytest.mark.parametrize("name", BUILT_IN)
def test_before_anything_was_measured_a_lease_has_a_single_step(name):
    begun = trajectory("a", num_steps=1000, workload=Workload(tokens=16, conditions=2))
    plans = [built_in(name).plan(view(begun, world=WORLD, costs=costs)) for costs in (CostTable(), known())]
    assert [len(plan) for plan in plans] == [1, 1]
    assert plans[0][0].num_steps == 1 < plans[1][0].num_steps


class Greedy:
    """Gives every request the first rank, busy or not."""

    def plan(self, view: View) -> tuple[Assignment, ...]:
        return tuple(Assignment(request_id=t.request_id, ranks=(0,), num_steps=1) for t in view.trajectories)


class Moody(Throughput):
    """Changes its mind without a reason."""

    def plan(self, view: View) -> tuple[Assignment, ...]:
        plan = super().plan(view)
        self.settings = replace(self.settings, pulse_s=self.settings.pulse_s + 10)
        return plan


def moody() -> Moody:
    return Moody(PoolSettings(widths=WIDTHS))


@pytest.mark.parametrize("broken", [Greedy, moody])
def test_the_contract_finds_a_plan_that_is_unsound_or_not_pure(broken):
    found_is_enough = settings(plenty, phases=[Phase.generate])  # The smallest view takes many times as long.
    with pytest.raises(AssertionError):
        check_every_plan_is_sound(broken, search=found_is_enough)


def test_the_contract_finds_a_policy_that_lets_work_wait():
    with pytest.raises(AssertionError):
        check_nothing_waits_while_all_ranks_idle(Lazy)
    with pytest.raises(BadSetting, match="nothing runs, and it gives no lease"):
        check_every_request_ends(Lazy)
