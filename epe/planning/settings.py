"""What the stage file says about the elastic policy."""

from __future__ import annotations

from dataclasses import dataclass


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
