"""Which parallel attention, over which transport: flags, keys and environment brought to one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, get_args

from msgspec import Struct

from epe.config.stage import CpBackend, CpMethod
from epe.errors import BadSetting

ENVIRONMENT: dict[CpMethod, str] = {
    "agkv": "EPE_AGKV_TRANSPORT",
    "ulysses": "EPE_ULYSSES_TRANSPORT",
}


class Given(NamedTuple):
    """A setting as the user gave it: its name (flag, key or variable) and its value, None if not given."""

    name: str
    value: str | None


NOT_GIVEN = Given("", None)


class Transport(Struct, frozen=True, kw_only=True):
    """What was asked for. The method `auto` lets each lane take what takes it less time; the backend `auto` uses what
    is there: NCCL between GPUs, gloo between CPU ranks. `fast` is memory that GPUs of one host share.

    `ulysses_degree` bounds the ranks that share heads; None: as many as can.
    """

    method: CpMethod = "agkv"
    backend: CpBackend = "auto"
    ulysses_degree: int | None = None


def resolve_transport(
    *,
    methods: tuple[Given, ...] = (),
    backend: Given = NOT_GIVEN,
    agkv: Given = NOT_GIVEN,
    ulysses: Given = NOT_GIVEN,
    degree: Given = NOT_GIVEN,
    env: Mapping[str, str],
) -> Transport:
    """One transport from everything that was given.

    `methods` are all ways to name the method, `backend` names the transport of whatever method is chosen,
    `agkv` and `ulysses` that of one method, `degree` how many ranks share heads. What is explicit goes before
    the environment. Raises `BadSetting` with both names where two of them disagree.
    """
    method, named = _method(methods)
    by_method: dict[CpMethod, Given] = {"agkv": agkv, "ulysses": ulysses}
    used = methods_of(method)
    for other, given in by_method.items():
        if other not in used and given.value not in (None, "auto"):
            raise BadSetting(
                f"{given.value} is for {other}, but the method is {method}{_by(named)}", path=given.name
            )
    chosen = _backend(used, (backend, *(by_method[each] for each in used)), env)
    return Transport(method=method, backend=chosen, ulysses_degree=_degree(method, named, degree))


def methods_of(method: CpMethod) -> tuple[CpMethod, ...]:
    """The methods that a lane may use."""
    return ("agkv", "ulysses") if method == "auto" else (method,)


def _method(methods: tuple[Given, ...]) -> tuple[CpMethod, Given]:
    """The method, and what named it."""
    given = [each for each in methods if each.value is not None]
    for other in given[1:]:
        if other.value != given[0].value:
            raise BadSetting(
                f"{other.value} contradicts {given[0].name} {given[0].value}; give one of them",
                path=other.name,
            )
    for known in get_args(CpMethod):
        if given and given[0].value == known:
            return known, given[0]
    if given:
        raise BadSetting(
            f"{given[0].value!r} is not one of {', '.join(get_args(CpMethod))}", path=given[0].name
        )
    return "agkv", NOT_GIVEN


def _backend(methods: tuple[CpMethod, ...], explicit: tuple[Given, ...], env: Mapping[str, str]) -> CpBackend:
    """The transport. Explicit `auto` yields to another explicit value, but not to the environment."""
    variables = {method: Given(name, env.get(name)) for method, name in ENVIRONMENT.items()}
    for variable in variables.values():
        _checked(variable)
    named = _agreed(explicit) or _agreed(tuple(variables[method] for method in methods))
    return named or "auto"


def _agreed(given: tuple[Given, ...]) -> CpBackend | None:
    """What those that say something agree on; `auto` yields to another value."""
    values = [(each, value) for each in given if (value := _checked(each)) is not None]
    firm = [(each, value) for each, value in values if value != "auto"]
    for other, value in firm[1:]:
        first, chosen = firm[0]
        if value != chosen:
            raise BadSetting(f"{value} contradicts {first.name} {chosen}; give one of them", path=other.name)
    return next((value for _, value in firm or values), None)


def _checked(given: Given) -> CpBackend | None:
    for known in get_args(CpBackend):
        if given.value == known:
            found: CpBackend = known
            return found
    if given.value is not None:
        raise BadSetting(f"{given.value!r} is not one of {', '.join(get_args(CpBackend))}", path=given.name)
    return None


def _degree(method: CpMethod, named: Given, degree: Given) -> int | None:
    if degree.value is None:
        return None
    if method != "ulysses":
        raise BadSetting(
            f"only ulysses has a degree, and the method is {method}{_by(named)}", path=degree.name
        )
    if int(degree.value) < 1:
        raise BadSetting(f"{degree.value} is not 1 or more", path=degree.name)
    return int(degree.value)


def _by(named: Given) -> str:
    return f" (by {named.name})" if named.name else " by default"
