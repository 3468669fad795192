"""A policy for comparison, as a stage file names it by its dotted path: stages apart, each class at a fixed width."""

from __future__ import annotations

from epe.simulator.baselines import BASELINES, BaselineSettings

WORLD = 2


class StaticStages(BASELINES["stage-static"]):  # type: ignore[misc]
    """`stage-static` of the simulator with its default settings, on two ranks."""

    def __init__(self) -> None:
        super().__init__(BaselineSettings(world_size=WORLD, widths=(1, 2)))
