"""What every baseline is told."""

from __future__ import annotations

from msgspec import Struct


class BaselineSettings(Struct, frozen=True, kw_only=True):
    """`widths` are the lane widths that the cost table knows; `tuned` holds parameters found on other seeds."""

    world_size: int
    widths: tuple[int, ...]
    tuned: dict[str, float] = {}
