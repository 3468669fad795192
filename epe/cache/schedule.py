"""Which steps a strategy computes: pure functions of the number of steps and of what is known of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epe.cache.profile import MagTable
from epe.families import AttentionKind
from epe.messages.caching import Pab, TaylorSeer, TeaCache


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
    first = range(min(strategy.first_enhance, num_steps))
    return _no_farther_apart(strategy.fresh_threshold, num_steps, always={*always, *first})


def fewest_tea_steps(strategy: TeaCache, num_steps: int, *, always: Iterable[int]) -> int:
    """How many TeaCache computes if no threshold is ever reached."""
    return len(_no_farther_apart(strategy.max_skip_steps + 1, num_steps, always=always))


def _no_farther_apart(gap: int, num_steps: int, *, always: Iterable[int]) -> tuple[int, ...]:
    """The steps of `always`, and every `gap`-th after the last one."""
    computed, since = set(always), 0
    for step in range(num_steps):
        since = 0 if step in computed else since + 1
        if since == gap:
            computed.add(step)
            since = 0
    return tuple(sorted(computed))


def pab_joints(strategy: Pab, num_steps: int, *, kinds: Sequence[AttentionKind]) -> tuple[int, ...]:
    """The steps at which attention of every kind is computed."""
    return tuple(
        step for step in range(num_steps) if not reused_kinds(strategy, step, num_steps, kinds=kinds)
    )


def reused_kinds(
    strategy: Pab, step: int, num_steps: int, *, kinds: Sequence[AttentionKind]
) -> frozenset[AttentionKind]:
    """The kinds of attention that a step takes from an earlier one: none outside the window between warm-up and
    cool-down, the first of it included."""
    place = step - max(1, strategy.warmup_steps or 1)
    if place < 0 or step >= num_steps - strategy.cooldown_steps:
        return frozenset()
    every = {
        "self": strategy.self_interval,
        "cross": strategy.cross_interval,
        "joint": strategy.joint_interval,
    }
    return frozenset(kind for kind in kinds if place % every[kind])
