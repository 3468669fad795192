"""What the parts of `docs/results/h200.md` have in common: how they name a case and show what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Line = dict[str, Any]
# Our best, which has `numerics: fast`.
BEST = "ours_compiled"
TITLES = {
    "diffusers_compiled": "diffusers, compiled",
    "ours": "ours",
    "ours_captured": "captured",
    BEST: "compiled and captured",
}


def name_of(case: Line) -> str:
    """Family, size and rows of text."""
    return f"{case['family']} {case['size']}, {case['text_rows']}"


def ratio(ratios: Sequence[float] | None) -> str:
    """Of the median, the least and the most; nothing for who did not draw."""
    if ratios is None:
        return ""
    middle, least, most = ratios
    return f"{middle:.2f}× ({least:.2f} to {most:.2f})"


def middle_of(values: Sequence[float]) -> float:
    """The median, of an even number of values the larger one."""
    return sorted(values)[len(values) // 2]
