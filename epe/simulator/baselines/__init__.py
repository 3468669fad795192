"""Other schedulers, written anew on our policy interface, to be compared with in the simulator; never served with.

`BASELINES[name](settings)` makes a fresh policy for one run. A policy that needs to be asked again at a time of
its own (rounds, pulses) has a method `wake_s(view)`; see `epe.simulator.engine.Waking`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from epe.planning.view import Policy
from epe.simulator.baselines.settings import BaselineSettings
from epe.simulator.baselines.static_sp import StaticSp

BASELINES: dict[str, Callable[[BaselineSettings], Policy]] = {
    f"static-sp{width}": partial(StaticSp, width=width) for width in (1, 2, 4, 8)
}

__all__ = ["BASELINES", "BaselineSettings", "StaticSp"]
