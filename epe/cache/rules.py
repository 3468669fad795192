"""From what a request asks to what its steps will do: checked and completed here, before anything runs."""

from __future__ import annotations

from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from epe.cache.profile import Profile
from epe.cache.schedule import forced, mag_steps, pab_joints, taylor_steps
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
# To choose among the plans of more steps would take many seconds.
MAX_PLANNED = 100
NAMES: tuple[StrategyName, ...] = get_args(StrategyName)


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
    if num_steps <= FEW_STEPS and not asked.few_steps:
        return Reuse(strategy=asked, computed=tuple(range(num_steps)))
    try:
        reuse = _planned(asked, rules, num_steps)
        inside = attention_bytes(reuse, rules.attention_rows, sizes, num_steps=num_steps)
        reuse = replace(reuse, attention_bytes=inside)
        _check(reuse, rules, sizes, num_steps=num_steps)
    except Unsupported:
        if strategy is None:
            return None  # nobody has asked for it here
        raise
    return reuse


def _check(reuse: Reuse, rules: CacheRules, sizes: Sizes, *, num_steps: int) -> None:
    name = name_of(reuse.strategy)
    kept_bytes = record_bytes(reuse, sizes, num_steps=num_steps) + reuse.attention_bytes
    if rules.max_bytes is not None and kept_bytes > rules.max_bytes:
        raise Unsupported(
            f"{name} would keep {kept_bytes / 2**20:.3g} MiB of this request; allowed are {rules.max_bytes / 2**20:.3g}"
        )
    least = rules.least_computed * num_steps
    if len(reuse.computed) < least and not reuse.is_static:
        raise Unsupported(
            f"{name} decides as it goes; this service computes at least {least:g} of {num_steps} steps"
        )
    if len(reuse.computed) < least:
        raise Unsupported(
            f"{name} would compute {len(reuse.computed)} of {num_steps} steps; this service computes at least "
            f"{least:g}: ask for less"
        )


def name_of(strategy: Strategy) -> str:
    """As requests and flags call it."""
    return str(strategy.__struct_config__.tag)


def supported(rules: CacheRules) -> tuple[StrategyName, ...]:
    """The strategies that a model can have with what is known of it."""
    profile = rules.profile or Profile(model="", family="", source="")
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


def _planned(asked: ActiveStrategy, rules: CacheRules, num_steps: int) -> Reuse:
    always = frozenset(forced(num_steps, warmup=asked.warmup_steps, cooldown=asked.cooldown_steps))
    match asked:
        case TaylorSeer():
            return Reuse(strategy=asked, computed=taylor_steps(asked, num_steps, always=always))
        case MagCache():
            return _magcache(asked, rules, num_steps, always)
        case TeaCache():
            return _teacache(asked, rules, always)
        case MeanCache():
            return _meancache(asked, _with_gram(asked, rules, num_steps), num_steps, always)
        case Pab():
            return _pab(asked, rules.attention, num_steps)
        case FreeCache():
            return _freecache(asked, _with_gram(asked, rules, num_steps), num_steps, always)


def _magcache(asked: MagCache, rules: CacheRules, num_steps: int, always: frozenset[int]) -> Reuse:
    table = None if rules.profile is None else rules.profile.mag_table(num_steps)
    if table is None:
        raise _unknown(asked, rules)
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


def _teacache(asked: TeaCache, rules: CacheRules, always: frozenset[int]) -> Reuse:
    coefficients = asked.coefficients or (rules.profile.tea if rules.profile else ())
    if not coefficients:
        raise _unknown(asked, rules)
    return Reuse(strategy=replace(asked, coefficients=coefficients), computed=tuple(sorted(always)))


def _meancache(asked: MeanCache, profile: Profile, num_steps: int, always: frozenset[int]) -> Reuse:
    num_computed = _within(asked.fresh_steps, "fresh_steps", num_steps, always)

    from epe.cache.meancache import mean_choice

    computed, orders = mean_choice(profile, num_steps, always, num_computed)
    return Reuse(strategy=asked, computed=computed, orders=orders)


def _freecache(asked: FreeCache, profile: Profile, num_steps: int, always: frozenset[int]) -> Reuse:
    budget = _within(asked.fresh_budget, "fresh_budget", num_steps, always)

    from epe.cache.freecache import free_choices

    choice = free_choices(profile, num_steps, always)[budget - 1]
    return Reuse(strategy=asked, computed=choice.computed, pulls=choice.pulls)


def _pab(asked: Pab, kinds: tuple[AttentionKind, ...], num_steps: int) -> Reuse:
    if not kinds:
        raise Unsupported(
            "pab is not supported with this family, whose attention modules do more than attention"
        )
    joints = pab_joints(asked, num_steps, kinds=kinds)
    return Reuse(strategy=asked, computed=tuple(range(num_steps)), joints=joints, kinds=kinds)


def _within(asked: int, name: str, num_steps: int, always: frozenset[int]) -> int:
    if asked < len(always):
        raise Unsupported(
            f"{name} {asked} is less than the {len(always)} steps that are always computed; lower warmup_steps or "
            "cooldown_steps"
        )
    if asked > num_steps:
        raise Unsupported(
            f"{name} {asked} is more than the {num_steps} steps of the request; give {name} from {len(always)} on"
        )
    return asked


def _with_gram(asked: ActiveStrategy, rules: CacheRules, num_steps: int) -> Profile:
    profile = rules.profile
    if num_steps > MAX_PLANNED:
        raise Unsupported(f"{name_of(asked)} plans up to {MAX_PLANNED} steps; {num_steps} are too many")
    if profile is None or not profile.gram:
        raise _unknown(asked, rules)
    return profile


def _unknown(asked: ActiveStrategy, rules: CacheRules) -> Unsupported:
    model = (
        f"what is known of {rules.profile.model}"
        if rules.profile
        else "this model, of which nothing is known"
    )
    return Unsupported(
        f"{name_of(asked)} is not supported with {model}; supported are {', '.join(supported(rules))}; "
        f"`epe cache fit --strategy {name_of(asked)}` makes a profile for it"
    )
