"""A policy for comparison, as a stage file names it by its dotted path: stages apart, each class at a fixed width."""

from __future__ import annotations

from epe.simulator.baselines import BASELINES, BaselineSettings


def lane_widths(world: int) -> tuple[int, ...]:
    """Powers of two, and all ranks."""
    return (*(width for width in (1, 2, 4, 8) if width < world), world)


class StaticStages2(BASELINES["stage-static"]):  # type: ignore[misc]
    """`stage-static` of the simulator with its default settings, on two ranks."""

    world = 2

    def __init__(self) -> None:
        super().__init__(BaselineSettings(world_size=self.world, widths=lane_widths(self.world)))


class StaticStages3(StaticStages2):
    """The same on three ranks."""

    world = 3


class StaticStages4(StaticStages2):
    """The same on four ranks."""

    world = 4


class StaticStages8(StaticStages2):
    """The same on eight ranks."""

    world = 8
