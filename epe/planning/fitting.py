"""Seconds of sizes that were not measured, from those that were; and how far that can be believed."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from enum import StrEnum

from msgspec import Struct

from epe.messages import Stage

# A size is fitted up to this many times beyond the smallest and largest that were measured; further is a guess.
REACH = 2.0
# Attention grows with the square of the tokens; nothing here grows faster, or costs less when it is more.
STEEPEST = 2.0


class CostKey(Struct, frozen=True, kw_only=True):
    """One kind of task, exactly."""

    stage: Stage
    tokens: int
    width: int = 1
    batch: int = 1
    conditions: int = 1
    model: str = ""


class Basis(StrEnum):
    """What a predicted time rests on, best first.

    `measured`: this very task. `fitted`: sizes around it, or at most `REACH` times smaller or larger, on lanes of
    this width. `extrapolated`: sizes further away, or other widths. `guessed`: nothing of its kind.
    """

    MEASURED = "measured"
    FITTED = "fitted"
    EXTRAPOLATED = "extrapolated"
    GUESSED = "guessed"


class Fit(Struct, frozen=True, kw_only=True):
    """Predicted seconds and what they rest on."""

    seconds: float
    basis: Basis


Point = tuple[int, float]
# Width, conditions and batch: what a line of sizes has in common.
Form = tuple[int, int, int]


class Lines:
    """The measured sizes of each kind of task by its form, tokens ascending: a fit looks at these alone."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Stage, str], dict[Form, list[Point]]] = {}

    def enter(self, key: CostKey, seconds: float) -> None:
        """Take a measured task; one of the same key is replaced."""
        forms = self._lines.setdefault((key.stage, key.model), {})
        points = forms.setdefault((key.width, key.conditions, key.batch), [])
        points[:] = [point for point in points if point[0] != key.tokens]
        insort(points, (key.tokens, seconds))

    def knows(self, stage: Stage, model: str) -> bool:
        """Whether any task of this kind was measured."""
        return (stage, model) in self._lines

    def fit(self, key: CostKey) -> Fit | None:
        """From the nearest width and conditions that were measured, by tokens on a log-log line; None if no task
        of this kind was measured."""
        forms = self._lines.get((key.stage, key.model))
        if forms is None:
            return None
        wanted = (key.width, key.conditions, key.batch)
        form = min(forms, key=lambda each: [abs(a - b) for a, b in zip(each, wanted, strict=True)])
        width, conditions, batch = form
        scale = (width / key.width) * (key.conditions / conditions) * (key.batch / batch)
        points = forms[form]
        # A text encoder does not see the size of the picture.
        seconds = _nearest(points, key.tokens) if key.stage is Stage.ENCODE else _on_line(points, key.tokens)
        return Fit(seconds=seconds * scale, basis=_basis(points, key, is_own=form == wanted))


def _basis(points: list[Point], key: CostKey, *, is_own: bool) -> Basis:
    if not is_own:
        return Basis.EXTRAPOLATED
    if key.stage is Stage.ENCODE:
        return Basis.FITTED
    least, most = points[0][0], points[-1][0]
    return Basis.FITTED if least / REACH <= key.tokens <= most * REACH else Basis.EXTRAPOLATED


def _nearest(points: list[Point], tokens: int) -> float:
    return min(points, key=lambda point: abs(point[0] - tokens))[1]


def _on_line(points: list[Point], tokens: int) -> float:
    """Seconds at `tokens`: a line through the two nearest points in log-log; proportional from a single one.

    Beyond the points the line is no steeper than the work can be: two sizes that are close to each other say
    little about one that is far from both.
    """
    if len(points) == 1:
        return points[0][1] * tokens / points[0][0]
    above = min(bisect_left(points, (tokens, -math.inf)), len(points) - 1)
    (t0, s0), (t1, s1) = points[max(above, 1) - 1 : max(above, 1) + 1]
    slope = math.log(s1 / s0) / math.log(t1 / t0)
    if t0 <= tokens <= t1:
        return float(s0 * (tokens / t0) ** slope)
    nearest_t, nearest_s = (t0, s0) if tokens < t0 else (t1, s1)
    return float(nearest_s * (tokens / nearest_t) ** min(max(slope, 0.0), STEEPEST))
