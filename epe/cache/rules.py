"""From what a request asks to what its steps will do: checked and completed here, before anything runs."""

from __future__ import annotations

from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from epe.cache.profile import TEA_THRESHOLD, Profile
from epe.cache.schedule import fewest_tea_steps, forced, mag_steps, pab_joints, taylor_steps
from epe.cache.sizes import RowBytes, Sizes, attention_bytes, record_bytes
from epe.families import AttentionKind
from epe.messages.caching import (
    ActiveStrategy,
    FreeCache,
    MagCache,
    MeanCache,
    NoCache,
    Pab,
    Reuse,
    Strategy,
    StrategyName,
    TaylorSeer,
    TeaCache,
)

# Few steps are far apart: what a default would skip there would show.
FEW_STEPS = 8
NAMES: tuple[StrategyName, ...] = get_args(StrategyName)
_NO_PROFILE = Profile(model="", family="", source="")


class Unsupported(ValueError):
    """A strategy that this model, number of steps or service cannot have; the message says what it can."""


class CacheRules(Struct, frozen=True, kw_only=True):
    """What a service knows and allows: the profile of its model, the strategy of requests that name none, the names of
    those that requests may ask for, the kinds of `attention` of its model that PAB can use again and what they give
    (none: nobody knows), the least part of the steps that is computed, and the most bytes that may be kept of one
    request (None: any)."""

    profile: Profile | None = None
    default: ActiveStrategy | None = None
    allowed: tuple[StrategyName, ...] = NAMES
    attention: tuple[AttentionKind, ...] = ()
    attention_rows: tuple[RowBytes, ...] = ()
    least_computed: float = 0.0
    max_bytes: int | None = None


NOTHING_KNOWN = CacheRules()
NO_SIZES = Sizes()


def resolve(
    strategy: Strategy | None, rules: CacheRules, *, num_steps: int, sizes: Sizes = NO_SIZES
) -> Reuse | None:
    """What the steps of a request of these `sizes` do, or None where all are computed. Raises `Unsupported`."""
    asked = rules.default if strategy is None else strategy
    if asked is None or isinstance(asked, NoCache):
        return None
    name = name_of(asked)
    if strategy is not None and name not in rules.allowed:
        raise Unsupported(
            f"{name} is not allowed by this service; allowed are {', '.join(rules.allowed) or 'none'}"
        )
    try:
        _check_supported(asked, rules)
        reuse = _planned(asked, rules, num_steps)
        inside = attention_bytes(reuse, rules.attention_rows, sizes, num_steps=num_steps)
        reuse = replace(reuse, attention_bytes=inside)
        _check(reuse, rules, sizes, num_steps=num_steps)
    except Unsupported:
        if strategy is None:
            return None  # nobody has asked for it here
        raise
    return reuse


def _check_supported(asked: ActiveStrategy, rules: CacheRules) -> None:
    name, known = name_of(asked), supported(rules)
    if name in known or (isinstance(asked, TeaCache) and asked.coefficients):
        return
    if isinstance(asked, Pab):
        raise Unsupported(
            "pab is not supported with this model: its attention modules do more than attention, or its blocks are "
            "compiled (`numerics: fast`)"
        )
    profile = rules.profile
    model = f"what is known of {profile.model}" if profile else "this model, of which nothing is known"
    raise Unsupported(
        f"{name} is not supported with {model}; supported are {', '.join(known)}; "
        f"`epe cache fit --strategy {name}` makes a profile for it"
    )


def _check(reuse: Reuse, rules: CacheRules, sizes: Sizes, *, num_steps: int) -> None:
    name = name_of(reuse.strategy)
    kept_bytes = record_bytes(reuse, sizes, num_steps=num_steps) + reuse.attention_bytes
    if rules.max_bytes is not None and kept_bytes > rules.max_bytes:
        raise Unsupported(
            f"{name} would keep {_mib(kept_bytes)} MiB of this request; allowed are {_mib(rules.max_bytes)}"
        )
    least, fewest = rules.least_computed * num_steps, _fewest(reuse, num_steps)
    if fewest < least:
        raise Unsupported(
            f"{name} {'would' if reuse.is_static else 'might'} compute {fewest} of {num_steps} steps; this service "
            f"computes at least {least:g}: let less be skipped"
        )


def _fewest(reuse: Reuse, num_steps: int) -> int:
    """Steps that are computed, or at least so many where that is decided later."""
    if isinstance(reuse.strategy, TeaCache):
        return fewest_tea_steps(reuse.strategy, num_steps, always=reuse.computed)
    return len(reuse.computed)


def _mib(num_bytes: int) -> str:
    """In 2**20 bytes: whole ones of many, three digits of few."""
    mib = num_bytes / 2**20
    return f"{mib:.0f}" if mib >= 1000 else f"{mib:.3g}"


def name_of(strategy: Strategy) -> str:
    """As requests and flags call it."""
    return str(strategy.__struct_config__.tag)


def supported(rules: CacheRules) -> tuple[StrategyName, ...]:
    """The strategies that a model can have with what is known of it."""
    profile = rules.profile or _NO_PROFILE
    has_gram = bool(profile.gram)
    known = {
        "magcache": has_gram or profile.mag is not None,
        "meancache": has_gram,
        "teacache": bool(profile.tea),
        "taylorseer": True,
        "freecache": has_gram,
        "pab": bool(rules.attention),
    }
    return tuple(name for name in NAMES if known[name])


def _planned(given: ActiveStrategy, rules: CacheRules, num_steps: int) -> Reuse:
    warmup = _warmup(given, num_steps)
    asked = replace(given, warmup_steps=warmup)
    if num_steps <= FEW_STEPS and not asked.few_steps:
        return Reuse(strategy=asked, computed=tuple(range(num_steps)))
    always = frozenset(forced(num_steps, warmup=warmup, cooldown=asked.cooldown_steps))
    profile = rules.profile or _NO_PROFILE
    match asked:
        case TaylorSeer():
            return Reuse(strategy=asked, computed=taylor_steps(asked, num_steps, always=always))
        case MagCache():
            return _magcache(asked, profile, num_steps, always)
        case TeaCache():
            threshold = asked.threshold or (TEA_THRESHOLD if asked.coefficients else profile.tea_threshold)
            whole = replace(asked, coefficients=asked.coefficients or profile.tea, threshold=threshold)
            return Reuse(strategy=whole, computed=tuple(sorted(always)))
        case MeanCache():
            return _meancache(asked, profile, num_steps, always)
        case Pab():
            joints = pab_joints(asked, num_steps, kinds=rules.attention)
            return Reuse(
                strategy=asked, computed=tuple(range(num_steps)), joints=joints, kinds=rules.attention
            )
        case FreeCache():
            return _freecache(asked, profile, num_steps, always)


def _warmup(given: ActiveStrategy, num_steps: int) -> int:
    """The first steps that are always computed: PAB's early ones decide on the picture."""
    if given.warmup_steps is not None:
        return given.warmup_steps
    return max(1, num_steps // 6) if isinstance(given, Pab) else 1


def _magcache(asked: MagCache, profile: Profile, num_steps: int, always: frozenset[int]) -> Reuse:
    table = profile.mag_table(num_steps)
    assert table is not None  # it is supported
    given = {
        name: value
        for name in ("threshold", "max_skip_steps", "retention_ratio")
        if (value := getattr(asked, name)) is not None
    }
    table = replace(table, **given)
    whole = replace(
        asked,
        threshold=table.threshold,
        max_skip_steps=table.max_skip_steps,
        retention_ratio=table.retention_ratio,
    )
    return Reuse(strategy=whole, computed=mag_steps(table, num_steps, always=always))


def _meancache(asked: MeanCache, profile: Profile, num_steps: int, always: frozenset[int]) -> Reuse:
    num_computed = _budget(asked.fresh_steps, "fresh_steps", num_steps, always)

    from epe.cache.meancache import mean_choice

    computed, orders = mean_choice(profile, num_steps, always, num_computed)
    return Reuse(strategy=replace(asked, fresh_steps=num_computed), computed=computed, orders=orders)


def _freecache(asked: FreeCache, profile: Profile, num_steps: int, always: frozenset[int]) -> Reuse:
    budget = _budget(asked.fresh_budget, "fresh_budget", num_steps, always)

    from epe.cache.freecache import free_choice

    choice = free_choice(profile, num_steps, always, budget)
    return Reuse(strategy=replace(asked, fresh_budget=budget), computed=choice.computed, pulls=choice.pulls)


def _budget(given: int | None, name: str, num_steps: int, always: frozenset[int]) -> int:
    """How many steps are computed: as many as are `given`, else half of them, or those of `always` if they are more."""
    if given is None:
        return max(len(always), (num_steps + 1) // 2)
    if given < len(always):
        raise Unsupported(
            f"{name} {given} is less than the {len(always)} steps that are always computed; lower warmup_steps or "
            "cooldown_steps"
        )
    if given > num_steps:
        raise Unsupported(
            f"{name} {given} is more than the {num_steps} steps of the request; give {len(always)} to {num_steps}"
        )
    return given
