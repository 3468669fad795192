"""The policy `latency`: the least mean latency.

Ranks are shared as heSRPT does it (Berg, Vesilo, Harchol-Balter, SIGMETRICS'20): who has least left gets most, but
others run beside it, since the last ranks of a wide lane gain little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from epe.planning.draft import Draft
from epe.planning.pool import Assembly, PoolSettings, Targets, targets_for, widened
from epe.planning.speeds import Speed
from epe.planning.throughput import saved_s
from epe.planning.view import Assignment, TrajectoryView, View

# The theorem knows no arrivals: a lane is not made wider for its share than this efficiency allows, since requests
# that come meanwhile would pay for it (0.75 was best over three cost sets and loads from 0.4 to 0.95).
EFFICIENCY_FLOOR = 0.75


class Latency:
    """Least remaining work first; widths are heSRPT's shares, rounded to the widths that there are and that use
    their ranks well; what that leaves goes to whoever saves most. Deadlines are not looked at."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        if not draft.free:
            return ()
        speeds = draft.speeds

        def left(trajectory: TrajectoryView) -> tuple[float, float]:
            return speeds.of(trajectory).best_s(trajectory), trajectory.arrival_s

        order = self.settings.first(draft, left)
        targets, spare = shared(draft, order, floor=EFFICIENCY_FLOOR)
        targets = widened(targets, spare, lambda t, a, b: saved_s(draft, t, a, b), speeds=speeds)
        Assembly(draft).run(targets, order)
        return draft.plan


def shared(draft: Draft, order: Sequence[TrajectoryView], *, floor: float = 0.0) -> tuple[Targets, int]:
    """Widths by heSRPT's shares for requests in the order of what is left of them, least first; and the ranks left.
    No lane is less efficient than `floor`."""
    num_ranks = len(draft.view.ranks)
    if not order:
        return [], num_ranks
    exponent = _mean_exponent([draft.speeds.of(t) for t in order])
    shares = dict(zip((t.request_id for t in order), hesrpt_shares(len(order), exponent), strict=True))

    def width(trajectory: TrajectoryView, spare: int) -> int:
        wanted = max(1, round(shares[trajectory.request_id] * num_ranks))
        speed = draft.speeds.of(trajectory)
        widths = [each for each in speed.within(min(wanted, spare)) if speed.efficiency(each) >= floor]
        return max(widths, default=speed.ladder[0])

    return targets_for(order, num_ranks, width)


def hesrpt_shares(num_requests: int, exponent: float) -> list[float]:
    """The share of the world for each request, least work first, when k ranks are k**exponent times as fast as one
    (theorem 7 of the paper: the i-th largest of m gets (i/m)**c - ((i-1)/m)**c, with c = 1 / (1 - exponent))."""
    c = 1 / (1 - exponent)
    bounds = [(place / num_requests) ** c for place in range(num_requests, -1, -1)]
    return [above - below for above, below in pairwise(bounds)]


def _mean_exponent(speeds: Sequence[Speed]) -> float:
    """The exponent that fits the fastest width of each request, in the mean; bounded away from 0 and 1."""
    exponents = [_exponent(speed) for speed in speeds]
    mean = sum(exponents) / len(exponents)
    return min(max(mean, 0.05), 0.95)


def _exponent(speed: Speed) -> float:
    narrow, wide = speed.ladder[0], speed.fastest
    if narrow == wide:
        return 0.0
    return math.log(speed.step_s(narrow) / speed.step_s(wide)) / math.log(wide / narrow)
