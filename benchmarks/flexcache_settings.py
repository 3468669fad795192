"""How much is drawn, which settings of FlexCache are compared, and evenly spaced steps to compare them with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product

from epe.cache import CacheRules, Profile, resolve
from epe.families import family
from epe.messages import (
    FreeCache,
    MagCache,
    MeanCache,
    Pab,
    Reuse,
    Strategy,
    TaylorSeer,
    TeaCache,
)

COUNTS = {50: (31, 25, 17, 13, 10), 20: (14, 10, 7, 5), 12: (6,)}
INTERVALS = (2, 3, 4)
# Of rows in tables.
ORDER = ("none", "freecache", "meancache", "magcache", "taylorseer", "teacache", "pab", "even", "bfloat16")
# Around what is fitted to the demo model, and the published default.
CHANGES = (0.006, 0.013, 0.03, 0.2)
# What stands in the contact sheet, by number of steps.
SHOWN = {
    12: ("none/12", "freecache/6", "meancache/6", "magcache/6", "even/6"),
    50: (
        "none/50",
        "freecache/25",
        "freecache/10",
        "meancache/10",
        "magcache/10",
        "even/10",
        "taylorseer/4",
        "teacache/0.013",
        "pab/4",
    ),
    20: (
        "none/20",
        "freecache/10",
        "meancache/10",
        "magcache/10",
        "even/10",
        "freecache/7",
        "even/7",
        "freecache/5",
        "meancache/5",
        "magcache/5",
        "even/5",
        "taylorseer/4",
        "teacache/0.013",
        "pab/4",
    ),
}
# MagCache's knobs, tried until it computes as few steps as asked for: as its authors have them first.
_RETENTIONS = (0.2, 0.1, 0.05)
_THRESHOLDS = tuple(0.01 * 1.15**power for power in range(60))
_SKIPS = (2, 3, 4, 6, 8)
# Tried after those, for many computed steps of a model whose velocities hardly change.
_FINER_THRESHOLDS = tuple(1e-5 * 1.3**power for power in range(60))
_FEWER_SKIPS = (1, *_SKIPS)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is drawn: `step_counts` of requests, how many fitting and held-out prompts, seeds of each."""

    step_counts: tuple[int, ...]
    num_fitting: int
    fitting_steps: int
    num_prompts: int
    num_seeds: int
    batch: int
    num_probed: int
    side: int
    rounds: int
    oracle_scenes: int


FULL = Plan(
    step_counts=(50, 20),
    num_fitting=40,
    fitting_steps=50,
    num_prompts=100,
    num_seeds=2,
    batch=100,
    num_probed=40,
    side=256,
    rounds=3,
    oracle_scenes=1000,
)
# On a CPU in ten minutes.
SMALL = Plan(
    step_counts=(20,),
    num_fitting=8,
    fitting_steps=20,
    num_prompts=8,
    num_seeds=1,
    batch=8,
    num_probed=4,
    side=256,
    rounds=1,
    oracle_scenes=300,
)
QUICK = Plan(
    step_counts=(12,),
    num_fitting=2,
    fitting_steps=12,
    num_prompts=2,
    num_seeds=1,
    batch=2,
    num_probed=1,
    side=128,
    rounds=1,
    oracle_scenes=60,
)
PLANS = {"full": FULL, "small": SMALL, "quick": QUICK}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of the comparison; `strategy` is what stands in the table's first column."""

    strategy: str
    value: float
    reuse: Reuse


def settings(profile: Profile, num_steps: int) -> Iterator[Setting]:
    rules = CacheRules(profile=profile, attention=family(profile.family).attention)

    def made(strategy: Strategy, name: str, value: float) -> Setting:
        reuse = resolve(strategy, rules, num_steps=num_steps)
        assert reuse is not None
        return Setting(strategy=name, value=value, reuse=reuse)

    few = {"few_steps": True}
    for count in COUNTS[num_steps]:
        yield made(FreeCache(fresh_budget=count, **few), "freecache", count)
        yield made(MeanCache(fresh_steps=count, **few), "meancache", count)
        yield Setting(strategy="even", value=count, reuse=evenly(count, num_steps))
        if (mag := _mag_with(count, rules, num_steps)) is not None:
            yield Setting(strategy="magcache", value=count, reuse=mag)
    for interval in INTERVALS:
        yield made(TaylorSeer(fresh_threshold=interval, **few), "taylorseer", interval)
    for interval in INTERVALS:
        yield made(pab_of(interval, num_steps), "pab", interval)
    for threshold in CHANGES:
        yield made(TeaCache(threshold=threshold, **few), "teacache", threshold)


def pab_of(interval: int, num_steps: int) -> Pab:
    """All kinds of attention at one interval, within a window that leaves out the first sixth of the steps."""
    return Pab(
        self_interval=interval,
        cross_interval=interval,
        joint_interval=interval,
        warmup_steps=num_steps // 6,
        few_steps=True,
    )


def evenly(count: int, num_steps: int) -> Reuse:
    """The last velocity held, between steps that are as evenly spaced as can be, the first and last among them."""
    spaced = {round(place * (num_steps - 1) / (count - 1)) for place in range(count)}
    return Reuse(strategy=MagCache(), computed=tuple(sorted(spaced)))


def _mag_with(count: int, rules: CacheRules, num_steps: int) -> Reuse | None:
    """MagCache at the least threshold at which it computes so many steps, with as many at the start as do for it, and
    then with as few in a row that are not computed."""
    usual, finer = (_SKIPS, _THRESHOLDS), (_FEWER_SKIPS, _FINER_THRESHOLDS)
    for retention, skips, threshold in chain(*(product(_RETENTIONS, *knobs) for knobs in (usual, finer))):
        strategy = MagCache(
            threshold=threshold, max_skip_steps=skips, retention_ratio=retention, few_steps=True
        )
        reuse = resolve(strategy, rules, num_steps=num_steps)
        if reuse is not None and len(reuse.computed) == count:
            return reuse
    return None
