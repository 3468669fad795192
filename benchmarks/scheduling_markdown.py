"""How the pages write figures."""

from __future__ import annotations

import os
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Names to the left, figures to the right."""
    bars = ["---", *("--:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, bars, *rows))


def percent(share: float | None) -> str:
    """Of a hundred, or a dash for what is not known."""
    return "-" if share is None else f"{100 * share:.1f}"


def points(share: float) -> str:
    """A difference of two shares."""
    return f"{100 * share:+.1f}"


def change(factor: float) -> str:
    """A factor as what it adds or takes away."""
    return f"{100 * (factor - 1):+.0f} %"


def cores() -> str:
    """Those of this machine that the program may use."""
    usable, there_are = len(os.sched_getaffinity(0)), os.cpu_count()
    return f"{usable} cores" if usable == there_are else f"{usable} of {there_are} cores"
