"""How near the simulator shall be to a service, class by class: what several programs and pages ask."""

from __future__ import annotations

# In time: points of all requests of the class. Median and P95: a share of what the service had.
IN_TIME, MEDIAN, TAIL = 0.03, 0.05, 0.10
LIMITS = {"in_time": IN_TIME, "p50_s": MEDIAN, "p95_s": TAIL}
FIGURES = tuple(LIMITS)
ROUNDING = 1e-9


def is_near(figure: str, foretold: float | None, seen: float | None) -> bool:
    """Whether a figure of `FIGURES` was foretold near enough; not if one of the two is endless (None)."""
    if foretold is None or seen is None:
        return False
    off = foretold - seen if figure == "in_time" else foretold / seen - 1
    return abs(off) <= LIMITS[figure] + ROUNDING
