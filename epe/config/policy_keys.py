"""Which keys of the scheduler each policy goes by: one that is given in vain is named, and lane widths that a policy
cannot keep are refused."""

from __future__ import annotations

from collections.abc import Iterator

from epe.config.convert import value_at
from epe.config.degrees import check_width
from epe.config.keys import Tree
from epe.config.stage import Stage
from epe.errors import BadSetting

SCHEDULER = "parallelism.scheduler"

_RESIZING = (
    "switch_allowed_until_step",
    "min_resize_gain_ms",
    "resize_hysteresis_ms",
    "resize_control_cost_ms",
)
_ALL = ("pulse_steps", "pulse_ms", "starvation_ms", "deadline_guard_ms", *_RESIZING)
_SHARED = ("pulse_steps", "pulse_ms", "starvation_ms")

KEYS_OF: dict[str, tuple[str, ...]] = {
    "elastic": _ALL,
    "static_cp": ("pulse_steps", "pulse_ms"),
    "static_dp": ("pulse_steps", "pulse_ms"),
    "throughput": _SHARED,
    "latency": _SHARED,
    "slo": (*_SHARED, "deadline_guard_ms"),
    "fair": _SHARED,
}
POLICIES = tuple(KEYS_OF)


def policy_notes(tree: Tree) -> Iterator[str]:
    """Keys that were given and that the policy does not look at."""
    policy = value_at(tree, f"{SCHEDULER}.policy") or "elastic"
    used = KEYS_OF.get(str(policy), ())
    for key in _ALL:
        path = f"{SCHEDULER}.{key}"
        if key not in used and value_at(tree, path) is not None:
            whose = f"the policy {policy} does" if policy in POLICIES else "a policy of your own does"
            yield f"{path}: {whose} not look at it"


def check_policy_widths(stage: Stage) -> None:
    """A policy that always takes the same width must be allowed to."""
    scheduler, world = stage.parallelism.scheduler, stage.parallelism.cp.world_size
    needed = {"static_cp": world, "static_dp": 1}.get(scheduler.policy)
    if needed is not None:
        check_width(needed, path=f"{SCHEDULER}.policy")
    if needed is not None and needed not in scheduler.allowed_lane_widths:
        widths = list(scheduler.allowed_lane_widths)
        raise BadSetting(
            f"{widths} has no {needed}, the one width that {scheduler.policy} uses; add it, or leave the key out",
            path=f"{SCHEDULER}.allowed_lane_widths",
        )
