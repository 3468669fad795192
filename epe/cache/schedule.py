"""Which steps a strategy computes: pure functions of the number of steps and of what is known of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epe.cache.profile import MagTable
from epe.messages.caching import TaylorSeer


def forced(num_steps: int, *, warmup: int, cooldown: int) -> set[int]:
    """The steps that are computed in any case. Before the first one there is nothing to lead on from."""
    return {0, *range(min(warmup, num_steps)), *range(max(0, num_steps - cooldown), num_steps)}


def mag_steps(table: MagTable, num_steps: int, *, always: Iterable[int]) -> tuple[int, ...]:
    """MagCache's: errors are summed as the products of ratios since the last computed step lie away from 1."""
    computed = set(always) | set(range(round(table.retention_ratio * num_steps)))
    product, error, held = 1.0, 0.0, 0
    for step in range(num_steps):
        product, held = product * table.ratios[step], held + 1
        error += abs(1 - product)
        if step in computed or error > table.threshold or held > table.max_skip_steps:
            computed.add(step)
            product, error, held = 1.0, 0.0, 0
    return tuple(sorted(computed))


def taylor_steps(strategy: TaylorSeer, num_steps: int, *, always: Iterable[int]) -> tuple[int, ...]:
    """TaylorSeer's: the first ones, then every `fresh_threshold`-th after the last that was computed."""
    computed = set(always) | set(range(min(strategy.first_enhance, num_steps)))
    since = 0
    for step in range(num_steps):
        since = 0 if step in computed else since + 1
        if since == strategy.fresh_threshold:
            computed.add(step)
            since = 0
    return tuple(sorted(computed))


def gaps(computed: Sequence[int], num_steps: int) -> Iterable[range]:
    """The steps after each computed one up to the next."""
    for first, end in zip(computed, (*computed[1:], num_steps), strict=True):
        yield range(first + 1, end)
