"""The flags of FlexCache, which follow from the strategies: `--cache-...` for all, and a prefix for each one's own."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import get_args

import msgspec
from msgspec.structs import FieldInfo, fields

from epe.cache import NAMES, Profile
from epe.cli.parser import Parser, number, whole_number
from epe.errors import BadSetting
from epe.messages import ActiveStrategy, NoCache, Strategy

_COMMON = {
    "warmup_steps": "first steps that are always computed (default 1; of pab a sixth of them)",
    "cooldown_steps": "last steps that are always computed (default 1)",
}
_STRATEGIES = dict(zip(NAMES, get_args(ActiveStrategy), strict=True))


def add_cache(parser: Parser) -> None:
    """FlexCache's flags, in a group of their own."""
    group = parser.add_argument_group("FlexCache")
    group.add_argument("--cache-strategy", choices=("none", *NAMES), help="reuse across steps (default none)")
    for name, meaning in _COMMON.items():
        group.add_argument(f"--cache-{name.replace('_', '-')}", type=whole_number, help=meaning)
    group.add_argument(
        "--cache-few-steps", action="store_true", default=None, help="reuse in 8 steps or fewer, too"
    )
    for strategy, field in _own_fields():
        group.add_argument(_flag(strategy, field.name), type=_reader(field), help=_default_of(field))
    group.add_argument(
        "--freecache-profile",
        metavar="MODEL:N",
        help="as --freecache-fresh-budget N, of this model's profile",
    )


def _own_fields() -> Iterator[tuple[str, FieldInfo]]:
    for name, struct in _STRATEGIES.items():
        for field in fields(struct):
            if field.name not in _COMMON and field.name != "few_steps":
                yield name, field


def _flag(strategy: str, name: str) -> str:
    return f"--{strategy}-{name.replace('_', '-')}"


def _reader(field: FieldInfo) -> Callable[[str], object]:
    kinds = str(field.type)
    if "tuple" in kinds:
        return _numbers
    return whole_number if "int" in kinds else number


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(number(part) for part in text.split(","))


def _default_of(field: FieldInfo) -> str:
    if field.default is not None:
        return f"default {field.default}"
    return "default: half of the steps" if field.name.startswith("fresh_") else "default: the profile's"


def strategy_of(args: Namespace, profile: Profile | None) -> Strategy | None:
    """What the flags ask for, or None. Raises `BadSetting` for flags that do not fit together."""
    chosen = args.cache_strategy
    given = {
        (strategy, field.name): value
        for strategy, field in _own_fields()
        if (value := getattr(args, f"{strategy}_{field.name}")) is not None
    }
    if args.freecache_profile is not None:
        _check_used(chosen, ["--freecache-profile"] if chosen != "freecache" else [], [])
        budget = _budget_of(args.freecache_profile, profile)
        if given.setdefault(("freecache", "fresh_budget"), budget) != budget:
            raise BadSetting("it contradicts --freecache-fresh-budget; give one", path="--freecache-profile")
    common = {
        name: value
        for name in (*_COMMON, "few_steps")
        if (value := getattr(args, f"cache_{name}")) is not None
    }
    _check_used(chosen, [_flag(*each) for each in given if each[0] != chosen], list(common))
    if chosen is None:
        return None
    if chosen == "none":
        return NoCache()
    own = {name: value for (strategy, name), value in given.items() if strategy == chosen}
    return _converted(chosen, own | common)


def _check_used(chosen: str | None, others: list[str], common: list[str]) -> None:
    flags = others + (
        [f"--cache-{name.replace('_', '-')}" for name in common] if chosen in (None, "none") else []
    )
    if flags:
        asked = "no --cache-strategy is given" if chosen is None else f"--cache-strategy is {chosen}"
        raise BadSetting(f"it has no effect: {asked}", path=flags[0])


def _converted(chosen: str, values: dict[str, object]) -> ActiveStrategy:
    for name, value in values.items():
        try:
            msgspec.convert({"strategy": chosen, name: value}, ActiveStrategy)
        except msgspec.ValidationError as error:
            path = f"--cache-{name}" if name in (*_COMMON, "few_steps") else _flag(chosen, name)
            message = str(error).partition(" - at")[0]
            raise BadSetting(
                f"{value} is not allowed: {message[:1].lower()}{message[1:]}", path=path.replace("_", "-")
            ) from None
    strategy: ActiveStrategy = msgspec.convert({"strategy": chosen, **values}, ActiveStrategy)
    return strategy


def _budget_of(text: str, profile: Profile | None) -> int:
    model, _, budget = text.rpartition(":")
    if not (budget.isascii() and budget.isdigit() and model):
        raise BadSetting(f"{text!r} is not of the form MODEL:N", path="--freecache-profile")
    known = "none" if profile is None else profile.model
    if profile is None or model.casefold() != profile.model.casefold():
        raise BadSetting(
            f"the profile of this checkpoint is {known}, not {model}", path="--freecache-profile"
        )
    return int(budget)
