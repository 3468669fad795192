"""Policies by name: those of the service, the other schedulers, and a user's own by dotted path."""

from __future__ import annotations

from epe.config.stage import Scheduler
from epe.errors import BadSetting
from epe.planning.policies import BUILT_IN, make_policy
from epe.planning.view import Policy
from epe.simulator.baselines import BASELINES, BaselineSettings


def policy_of(name: str, *, widths: tuple[int, ...], world_size: int) -> Policy:
    """A fresh policy for one run, with the settings that a stage file would give it by default."""
    if name in BASELINES:
        return BASELINES[name](BaselineSettings(world_size=world_size, widths=widths))
    if name in BUILT_IN or "." in name:
        scheduler = Scheduler(policy=name, allowed_lane_widths=widths, warmup_resolutions=())
        return make_policy(scheduler, widths=widths)
    known = ", ".join((*BUILT_IN, *BASELINES))
    raise BadSetting(
        f"policy {name!r} is not known; known are {known}, or the dotted path of a class", path="--policy"
    )
