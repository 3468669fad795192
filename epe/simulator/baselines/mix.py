"""The cheapest way to end in time: all steps at one width, or some at a wide one and the rest at a narrow one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from epe.planning.speeds import Speed


class Segment(NamedTuple):
    """So many steps at this width."""

    width: int
    num_steps: int


def cheapest_mix(speed: Speed, num_steps: int, left_s: float) -> tuple[Segment, ...]:
    """The segments, narrow first, that run `num_steps` within `left_s` for the fewest rank-seconds; empty if even
    the fastest width is too slow. Two widths suffice (TetriServe, arXiv 2510.01565, section 4.1)."""
    mixes = list(_mixes(speed, num_steps, left_s))
    return min(mixes, key=lambda mix: _rank_seconds(speed, mix), default=())


def _mixes(speed: Speed, num_steps: int, left_s: float) -> Iterator[tuple[Segment, ...]]:
    for place, narrow in enumerate(speed.ladder):
        over_s = num_steps * speed.step_s(narrow) - left_s
        if over_s <= 0:
            yield (Segment(narrow, num_steps),)
            return
        for wide in speed.ladder[place + 1 :]:
            saved_s = speed.step_s(narrow) - speed.step_s(wide)
            num_wide = math.ceil(over_s / saved_s)
            if num_wide < num_steps:
                yield (Segment(narrow, num_steps - num_wide), Segment(wide, num_wide))


def _rank_seconds(speed: Speed, mix: tuple[Segment, ...]) -> float:
    return sum(segment.width * segment.num_steps * speed.step_s(segment.width) for segment in mix)
