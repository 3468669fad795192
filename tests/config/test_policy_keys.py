"""Keys of the scheduler that a policy does not look at are named; widths that it cannot keep are refused."""

from __future__ import annotations

import pytest

from epe.config.load import build_stage
from epe.config.policy_keys import KEYS_OF, POLICIES
from epe.errors import BadSetting

SCHEDULER = "parallelism.scheduler"
NO_ENV: dict[str, str] = {}


def unused(settings, policy: str, **scheduler: object) -> set[str]:
    settings["parallelism"]["scheduler"] = {"policy": policy, **scheduler}
    unused = (note.partition(":")[0] for note in build_stage(settings, env=NO_ENV).unused)
    return {path for path in unused if path.startswith(SCHEDULER)}


@pytest.mark.parametrize("policy", POLICIES)
def test_each_key_is_used_or_named(settings, policy: str):
    given = dict.fromkeys(KEYS_OF["elastic"], 7)
    named = unused(settings, policy, **given)
    assert named == {f"{SCHEDULER}.{key}" for key in set(given) - set(KEYS_OF[policy])}


def test_a_policy_of_ones_own_is_given_none_of_them(settings):
    assert unused(settings, "my.policies.Nightly", pulse_ms=20) == {f"{SCHEDULER}.pulse_ms"}


def test_nothing_is_named_that_was_not_given(settings):
    assert unused(settings, "latency") == set()
    assert unused(settings, "elastic", min_resize_gain_ms=0) == set()


@pytest.mark.parametrize(
    ("policy", "widths", "missing"), [("static_cp", [1, 2], 4), ("static_dp", [2, 4], 1)]
)
def test_a_policy_of_one_width_must_be_allowed_to_have_it(settings, policy, widths, missing):
    with pytest.raises(BadSetting, match=f"has no {missing}, the one width that {policy} uses") as caught:
        unused(settings, policy, allowed_lane_widths=widths)
    assert caught.value.path == f"{SCHEDULER}.allowed_lane_widths"


@pytest.mark.parametrize(
    ("policy", "widths"), [("static_cp", [4]), ("static_dp", [1]), ("static_cp", [1, 4])]
)
def test_the_one_width_is_enough(settings, policy, widths):
    assert unused(settings, policy, allowed_lane_widths=widths) == set()
