"""Other schedulers, written anew on our policy interface, to be compared with in the simulator; never served with.

`BASELINES[name](settings)` makes a fresh policy for one run. Some keep a little state between calls and say so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from epe.planning.view import Policy
from epe.simulator.baselines.ddit import Ddit
from epe.simulator.baselines.genserve import GenServe
from epe.simulator.baselines.gfdit import EdfBestFit
from epe.simulator.baselines.hesrpt import HeSrpt
from epe.simulator.baselines.preemptive import PreemptiveEdf, PreemptiveSrtf
from epe.simulator.baselines.pulses import Pulses
from epe.simulator.baselines.rssp import Rssp
from epe.simulator.baselines.settings import BaselineSettings, class_of
from epe.simulator.baselines.stage_static import StageStatic
from epe.simulator.baselines.static_sp import StaticSp
from epe.simulator.baselines.tetriserve import TetriServeContinuous, TetriServeRounds

Make = Callable[[BaselineSettings], Policy]


def _late_last(make: Make) -> Make:
    """The same scheduler with requests that can no longer be in time behind all others."""
    return lambda settings: make(replace(settings, late_last=True))


BASELINES: dict[str, Make] = {
    **{f"static-sp{width}": partial(StaticSp, width=width) for width in (1, 2, 4, 8)},
    "rssp": Rssp,
    "stage-static": StageStatic,
    "edf-preempt": PreemptiveEdf,
    "srtf-preempt": PreemptiveSrtf,
    "ddit": Ddit,
    "gfdit-edf": EdfBestFit,
    "tetriserve-rounds": TetriServeRounds,
    "tetriserve-rounds-late-last": _late_last(TetriServeRounds),
    "tetriserve": TetriServeContinuous,
    "tetriserve-late-last": _late_last(TetriServeContinuous),
    "pulses": Pulses,
    "genserve": GenServe,
    "hesrpt": HeSrpt,
}

__all__ = ["BASELINES", "BaselineSettings", "class_of"]
