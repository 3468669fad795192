"""Plain values to structs, with errors that name the path, what was given and what is allowed."""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from typing import Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from epe.errors import BadSetting

T = TypeVar("T", bound=Struct)

_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}


def to_struct(value: object, struct: type[T]) -> T:
    """Strict conversion; raises `BadSetting` with the dotted path of the first value that does not fit."""
    try:
        result = msgspec.convert(value, struct, strict=True)
    except msgspec.ValidationError as error:
        raise _explained(str(error), value, struct) from None
    _check_numbers(msgspec.to_builtins(result), path="")
    return result


def value_at(value: object, path: str) -> object:
    """The plain value at a path such as `gpu[1]` or `parallelism.cp.world_size`; None where there is none."""
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        if index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        elif key and isinstance(value, dict):
            value = value.get(key)
        else:
            return None
    return value


def _explained(text: str, value: object, struct: type[Struct]) -> BadSetting:
    message, _, place = text.partition(" - at `$")
    path = place.rstrip("`").lstrip(".")
    missing = re.fullmatch(r"Object missing required field `(\w+)`", message)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return BadSetting("this key is missing", path=path)
    unknown = re.fullmatch(r"Object contains unknown field `(\w+)`", message)
    if unknown:
        known = tuple(each.name for each in fields(_struct_at(struct, path, value)))
        listed = _listed(unknown[1], known)
        return BadSetting(
            f"this key is not known; known here are {listed}", path=f"{path}.{unknown[1]}".lstrip(".")
        )
    given = value_at(value, path)
    allowed = _choices(struct, path, value) or _tags(struct, path, value)
    if allowed:
        return BadSetting(f"{_shown(given)} is not one of {_listed(given, allowed)}", path=path)
    return BadSetting(f"expected {_wanted(message)}, got {_shown(given)}", path=path)


def _wanted(message: str) -> str:
    """msgspec's expectation (such as "Expected `int` >= 3, got `str`") in plain words."""
    wanted = message.removeprefix("Expected ").partition(", got ")[0]
    return re.sub(
        r"`([^`]*)`",
        lambda kinds: " or ".join(_NAMES.get(each, each) for each in kinds[1].split(" | ")),
        wanted,
    )


def _shown(given: object) -> str:
    match given:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list():
            return f"a list of {len(given)}"
        case bool():
            return str(given).lower()
        case _:
            return repr(given)


def _listed(given: object, allowed: tuple[object, ...]) -> str:
    words = [str(each) for each in allowed]
    near = get_close_matches(str(given), words, n=1)
    return ", ".join(words) + (f"; did you mean {near[0]}?" if near else "")


def _choices(struct: type[Struct], path: str, value: object) -> tuple[object, ...]:
    """The values that a `Literal` field allows, or each place of a list of them; empty for other fields."""
    place, _, key = path.rpartition(".")
    kind = _kind(_struct_at(struct, place, value), key)
    if get_origin(kind) is tuple and not key.endswith("]"):
        return ()
    return tuple(
        each for kind in (kind, *get_args(kind)) if get_origin(kind) is Literal for each in get_args(kind)
    )


def _tags(struct: type[Struct], path: str, value: object) -> tuple[object, ...]:
    """The names of the structs that may stand around `path`, where that is the key that names one; else empty."""
    place, _, key = path.rpartition(".")
    above, _, name = place.rpartition(".")
    configs = [each.__struct_config__ for each in _structs(_kind(_struct_at(struct, above, value), name))]
    return tuple(config.tag for config in configs if config.tag_field == key)


def _kind(struct: type[Struct], key: str) -> object:
    """The type of a field, `key` being its name or that of a place in it, such as `gpu[1]`; None if there is none."""
    return next((each.type for each in fields(struct) if each.name == key.partition("[")[0]), None)


def _structs(kind: object) -> list[type[Struct]]:
    """Those that a field of this type may hold."""
    return [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, Struct)]


def _struct_at(struct: type[Struct], path: str, value: object) -> type[Struct]:
    """The struct at a path such as `faults[1]`, of several the one that the tag in `value` names; the one that is
    nearest above where there is none."""
    here, place = struct, ""
    for key in re.findall(r"[^.\[\]]+", re.sub(r"\[\d+\]", "", path)):
        place = f"{place}.{key}".lstrip(".")
        inner = _structs(_kind(here, key))
        given = value_at(value, place)
        named = [each for each in inner if isinstance(given, dict) and _is_named(each, given)]
        here = (named or inner or [here])[-1]
    return here


def _is_named(struct: type[Struct], given: dict[object, object]) -> bool:
    config = struct.__struct_config__
    return config.tag_field is not None and given.get(config.tag_field) == config.tag


def _check_numbers(value: object, *, path: str) -> None:
    """What is not finite compares with nothing, and no message between processes holds a larger integer."""
    match value:
        case float() if not math.isfinite(value):
            raise BadSetting(f"expected a finite number, got {value}", path=path)
        case int() if abs(value) >= 2**63:
            raise BadSetting(f"expected a whole number of less than 64 bits, got {value}", path=path)
        case dict():
            for key, inner in value.items():
                _check_numbers(inner, path=f"{path}.{key}" if path else str(key))
        case list():
            for place, inner in enumerate(value):
                _check_numbers(inner, path=f"{path}[{place}]")
