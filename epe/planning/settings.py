"""What the stage file says about the elastic policy."""

from __future__ import annotations

from dataclasses import dataclass

from epe.messages import Stage
from epe.planning.pace import Pace
from epe.planning.view import TrajectoryView


@dataclass(frozen=True, kw_only=True)
class ElasticSettings:
    """Times in seconds.

    `efficiency_floor`: a lane is widened over others' heads only while it still uses this share of what it
    would gain on ideal ranks. `max_looked_at` bounds the work of a plan whatever the length of the queue.
    """

    widths: tuple[int, ...]
    pulse_s: float = 0.05
    pulse_steps: int = 1
    starvation_s: float = 30.0
    deadline_guard_s: float = 0.0
    min_resize_gain_s: float = 0.0
    resize_hysteresis_s: float = 0.0
    resize_control_cost_s: float = 0.0
    switch_allowed_until_step: int | None = None
    efficiency_floor: float = 0.6
    max_looked_at: int = 24
    max_layouts: int = 12

    @property
    def resize_s(self) -> float:
        """What a wider lane must save at least, besides the move."""
        return self.min_resize_gain_s + self.resize_hysteresis_s + self.resize_control_cost_s

    def fixed_width(self, trajectory: TrajectoryView) -> int | None:
        """The width that a request must keep, because it is past the cut-off step."""
        cut_off = self.switch_allowed_until_step
        if cut_off is None or trajectory.step == 0 or trajectory.stage is not Stage.DENOISE:
            return None
        return len(trajectory.lane) if trajectory.step >= cut_off else None

    def options(self, trajectory: TrajectoryView, pace: Pace) -> tuple[int, ...]:
        """The widths that a request may be given, narrow ones first: those of its steps, or of its decode."""
        if trajectory.stage is Stage.DECODE:
            return tuple(width for width, _ in pace.decode)
        fixed = self.fixed_width(trajectory)
        return pace.widths if fixed is None else (fixed,)
