"""The one idea of this room: the velocity of a step that is not computed is a combination of computed ones.

Every strategy but PAB leads on from the velocities that it has by a rule which is linear in them, with weights that
follow from the schedule alone. So what is kept of a request are a few velocities, as small as its latents, and a rule
is a row of numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import factorial
from types import MappingProxyType

from epe.messages.caching import FreeCache, MeanCache, Reuse, TaylorSeer

Weights = Mapping[int, float]


@lru_cache(maxsize=4096)
def weights(reuse: Reuse, sigmas: tuple[float, ...], step: int) -> Weights:
    """The computed steps of whose velocities that of `step` is the sum, each with its weight. `sigmas` are the noise
    levels before each step and after the last. Raises `ValueError` where nothing was computed before."""
    end = bisect_left(reuse.computed, step + 1)
    anchors = reuse.computed[bisect_left(reuse.computed, reuse.first_used(step)) : end]
    if not anchors:
        raise ValueError(f"step {step} has no computed step before it")
    if anchors[-1] == step:
        return MappingProxyType({step: 1.0})
    return MappingProxyType(_led_on(reuse, sigmas, step, anchors))


def _led_on(reuse: Reuse, sigmas: tuple[float, ...], step: int, anchors: Sequence[int]) -> dict[int, float]:
    match reuse.strategy:
        case TaylorSeer(max_order=order):
            return _taylor(anchors[-order - 1 :], step)
        case MeanCache():
            return _mean_rows(reuse, sigmas)[step]
        case FreeCache():
            return _free(anchors, pull=_pull(reuse, anchors[-1]))
        case _:
            return {anchors[-1]: 1.0}


def _taylor(anchors: Sequence[int], step: int) -> dict[int, float]:
    """The series of Liu et al. (2025): differences of each order over the distance of the last two computed steps, and
    powers of the distance to the step."""
    differences: list[dict[int, float]] = [{anchor: 1.0} for anchor in anchors]
    terms = []
    for order in range(len(anchors)):
        terms.append(_scaled(differences[-1], (step - anchors[-1]) ** order / factorial(order)))
        differences = [
            _sum(_scaled(later, 1 / gap), _scaled(earlier, -1 / gap))
            for earlier, later, gap in zip(
                differences, differences[1:], _gaps(anchors)[-len(differences) + 1 :], strict=False
            )
        ]
    return _sum(*terms)


def _gaps(anchors: Sequence[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(anchors)]


@lru_cache(maxsize=16)
def _mean_rows(reuse: Reuse, sigmas: tuple[float, ...]) -> tuple[dict[int, float], ...]:
    """MeanCache's weights of every step, one after the other, since each is made of those before it."""
    rows: list[dict[int, float]] = []
    for step in range(len(sigmas) - 1):
        if reuse.computes(step):
            rows.append({step: 1.0})
        else:
            window = min(reuse.orders[step], step - reuse.first_used(step))
            rows.append(_mean(rows, sigmas, window=window))
    return tuple(rows)


def _mean(rows: Sequence[Weights], sigmas: tuple[float, ...], *, window: int) -> dict[int, float]:
    """The velocity over the next interval, by the last one and half the slope over the last `window` steps, which is
    how far their mean lies from the first of them. Steps that were led on themselves count as steps."""
    step = len(rows)
    first = step - window
    span = sigmas[step] - sigmas[first]
    past = rows[first:]
    shares = [(sigmas[each + 1] - sigmas[each]) / span for each in range(first, step)]
    mean = _sum(*(_scaled(one, share) for one, share in zip(past, shares, strict=True)))
    lead = -(sigmas[step + 1] - sigmas[step]) / span
    return _sum(past[-1], _scaled(past[0], lead), _scaled(mean, -lead))


def _pull(reuse: Reuse, anchor: int) -> float:
    return reuse.pulls[bisect_left(reuse.computed, anchor)] if reuse.pulls else 0.0


def _free(anchors: Sequence[int], *, pull: float) -> dict[int, float]:
    """The last velocity, and the gap's part of its difference to the one before."""
    if len(anchors) == 1 or pull == 0:
        return {anchors[-1]: 1.0}
    return {anchors[-2]: -pull, anchors[-1]: 1 + pull}


def _scaled(weights: Weights, factor: float) -> dict[int, float]:
    return {step: factor * weight for step, weight in weights.items()}


def _sum(*terms: Weights) -> dict[int, float]:
    total: dict[int, float] = {}
    for term in terms:
        for step, weight in term.items():
            total[step] = total.get(step, 0.0) + weight
    return {step: weight for step, weight in sorted(total.items()) if weight != 0.0}


@lru_cache(maxsize=1024)
def last_uses(reuse: Reuse, sigmas: tuple[float, ...]) -> Mapping[int, int]:
    """The last step whose velocity is made of that of a computed one, for each that is used again: when its record can
    be let go."""
    uses: dict[int, int] = {}
    for step in range(len(sigmas) - 1):
        if not reuse.computes(step):
            uses |= dict.fromkeys(weights(reuse, sigmas, step), step)
    return MappingProxyType(uses)


def even_levels(num_steps: int) -> tuple[float, ...]:
    """Noise levels with which to ask which steps are used: that does not depend on them."""
    return tuple(1 - step / num_steps for step in range(num_steps + 1))


@lru_cache(maxsize=4096)
def records_at(reuse: Reuse, sigmas: tuple[float, ...], step: int) -> tuple[int, ...]:
    """The computed steps whose velocities are kept at the boundary before `step`; of strategies that are static."""
    return tuple(first for first, last in last_uses(reuse, sigmas).items() if first < step <= last)


def num_kept(reuse: Reuse, step: int, *, num_steps: int) -> int:
    """Velocities that are kept at the boundary before `step`: with TeaCache the last one, and the latents that it came
    from, as long as a step is to be decided on."""
    if not reuse.is_static:
        return 2 if step and reuse.is_open(step, num_steps) else 0
    return len(records_at(reuse, even_levels(num_steps), step))


@lru_cache(maxsize=1024)
def num_records(reuse: Reuse, num_steps: int) -> int:
    """The most that are kept at once."""
    if not reuse.is_static:
        return max(num_kept(reuse, step, num_steps=num_steps) for step in range(num_steps))
    begins_less_ends = [0] * (num_steps + 1)
    for first, last in last_uses(reuse, even_levels(num_steps)).items():
        begins_less_ends[first + 1] += 1
        begins_less_ends[last + 1] -= 1
    return max(accumulate(begins_less_ends))
