"""From the stage file's scheduler section to a policy: the built-in ones, and a user's own by dotted path."""

from __future__ import annotations

from importlib import import_module

from epe.config.policy_keys import POLICIES
from epe.config.stage import Scheduler
from epe.errors import BadSetting
from epe.planning.elastic import Elastic, ElasticSettings
from epe.planning.fair import Fair
from epe.planning.latency import Latency
from epe.planning.pool import PoolSettings
from epe.planning.slo import Slo
from epe.planning.static import StaticCp, StaticDp
from epe.planning.throughput import Throughput
from epe.planning.view import Policy

BUILT_IN = POLICIES


def make_policy(scheduler: Scheduler, *, widths: tuple[int, ...]) -> Policy:
    """The policy that the stage file names. A dotted path `package.module.Class` is called without arguments."""
    pulse_s = scheduler.pulse_ms / 1e3
    match scheduler.policy:
        case "elastic":
            return Elastic(elastic_settings(scheduler, widths=widths))
        case "static_cp":
            return StaticCp(widths=widths, pulse_s=pulse_s, pulse_steps=scheduler.pulse_steps)
        case "static_dp":
            return StaticDp(pulse_s=pulse_s, pulse_steps=scheduler.pulse_steps)
        case "throughput":
            return Throughput(pool_settings(scheduler, widths=widths))
        case "latency":
            return Latency(pool_settings(scheduler, widths=widths))
        case "slo":
            return Slo(pool_settings(scheduler, widths=widths))
        case "fair":
            return Fair(pool_settings(scheduler, widths=widths))
        case path:
            return _by_path(path)


def elastic_settings(scheduler: Scheduler, *, widths: tuple[int, ...]) -> ElasticSettings:
    """The scheduler section in the units of the policy."""
    return ElasticSettings(
        widths=widths,
        pulse_s=scheduler.pulse_ms / 1e3,
        pulse_steps=scheduler.pulse_steps,
        starvation_s=scheduler.starvation_ms / 1e3,
        deadline_guard_s=scheduler.deadline_guard_ms / 1e3,
        min_resize_gain_s=scheduler.min_resize_gain_ms / 1e3,
        resize_hysteresis_s=scheduler.resize_hysteresis_ms / 1e3,
        resize_control_cost_s=scheduler.resize_control_cost_ms / 1e3,
        switch_allowed_until_step=scheduler.switch_allowed_until_step,
    )


def pool_settings(scheduler: Scheduler, *, widths: tuple[int, ...]) -> PoolSettings:
    """The scheduler section in the units of the policies of one aim."""
    return PoolSettings(
        widths=widths,
        pulse_s=scheduler.pulse_ms / 1e3,
        pulse_steps=scheduler.pulse_steps,
        starvation_s=scheduler.starvation_ms / 1e3,
        deadline_guard_s=scheduler.deadline_guard_ms / 1e3,
    )


def _by_path(path: str) -> Policy:
    module, _, name = path.rpartition(".")
    try:
        policy: Policy = getattr(import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise BadSetting(
            f"{path!r} is neither one of {', '.join(BUILT_IN)} nor the dotted path of a class ({error})",
            path="parallelism.scheduler.policy",
        ) from error
    return policy
