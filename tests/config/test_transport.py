from __future__ import annotations

from itertools import product

import pytest

from epe.config.transport import Given, Transport, resolve_transport
from epe.errors import BadSetting

FLAGS = (
    "--cp-method",
    "--attention-mode",
    "--cp-backend",
    "--agkv-transport",
    "--ulysses-transport",
    "--ulysses-degree",
)


def resolve(env: dict[str, str] | None = None, **values: str) -> Transport:
    """With flags given as cp_method="agkv" and so on."""
    method, mode, backend, agkv, ulysses, degree = (
        Given(flag, values.get(flag.strip("-").replace("-", "_"))) for flag in FLAGS
    )
    return resolve_transport(
        methods=(method, mode), backend=backend, agkv=agkv, ulysses=ulysses, degree=degree, env=env or {}
    )


def test_the_method_is_agkv_and_the_backend_what_is_there():
    assert resolve() == Transport(method="agkv", backend="auto")


@pytest.mark.parametrize("flags", [{"cp_backend": "nccl"}, {"agkv_transport": "nccl"}])
def test_the_new_and_the_old_flag_name_the_backend(flags):
    assert resolve(**flags).backend == "nccl"


def test_flags_that_agree_may_both_be_given():
    given = {"cp_method": "agkv", "attention_mode": "agkv", "cp_backend": "nccl", "agkv_transport": "nccl"}
    assert resolve(**given) == Transport(method="agkv", backend="nccl")


def test_an_auto_transport_yields_to_the_new_flag():
    assert resolve(cp_backend="nccl", agkv_transport="auto", ulysses_transport="auto").backend == "nccl"


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({"cp_method": "agkv", "attention_mode": "ulysses"}, ("--attention-mode", "--cp-method agkv")),
        ({"cp_backend": "nccl", "agkv_transport": "fast"}, ("--agkv-transport", "--cp-backend nccl")),
        ({"cp_backend": "fast", "agkv_transport": "nccl"}, ("--agkv-transport", "--cp-backend fast")),
        ({"cp_method": "agkv", "ulysses_transport": "nccl"}, ("--ulysses-transport", "by --cp-method")),
        ({"ulysses_transport": "fast"}, ("--ulysses-transport", "agkv by default")),
        (
            {"attention_mode": "ulysses", "agkv_transport": "nccl"},
            ("--agkv-transport", "by --attention-mode"),
        ),
    ],
)
def test_flags_that_contradict_each_other_are_both_named(flags, names):
    with pytest.raises(BadSetting) as caught:
        resolve(**flags)
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize("flag", ["cp_method", "attention_mode"])
def test_ulysses_is_chosen_by_the_new_and_the_old_flag(flag):
    assert resolve(**{flag: "ulysses"}) == Transport(method="ulysses")
    assert resolve(**{flag: "ulysses", "ulysses_transport": "nccl"}).backend == "nccl"


def test_a_method_that_is_left_open_takes_the_transport_of_either():
    assert resolve(cp_method="auto") == Transport(method="auto")
    assert resolve(cp_method="auto", cp_backend="nccl").backend == "nccl"
    assert resolve(attention_mode="auto", ulysses_transport="nccl").backend == "nccl"
    assert resolve({"EPE_ULYSSES_TRANSPORT": "nccl"}, cp_method="auto").backend == "nccl"


def test_transports_of_both_methods_that_disagree_are_named_where_the_method_is_open():
    with pytest.raises(BadSetting, match="fast contradicts --agkv-transport nccl") as caught:
        resolve(cp_method="auto", agkv_transport="nccl", ulysses_transport="fast")
    assert caught.value.path == "--ulysses-transport"


def test_ulysses_may_have_a_degree():
    assert resolve(cp_method="ulysses", ulysses_degree="2") == Transport(method="ulysses", ulysses_degree=2)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"ulysses_degree": "2"}, "the method is agkv by default"),
        ({"cp_method": "agkv", "ulysses_degree": "2"}, "the method is agkv .by --cp-method"),
        ({"cp_method": "auto", "ulysses_degree": "2"}, "the method is auto .by --cp-method"),
        ({"cp_method": "ulysses", "ulysses_degree": "0"}, "0 is not 1 or more"),
    ],
)
def test_a_degree_that_does_not_fit_is_named(flags, words):
    with pytest.raises(BadSetting, match=words) as caught:
        resolve(**flags)
    assert caught.value.path == "--ulysses-degree"


@pytest.mark.parametrize("flag", ["cp_backend", "agkv_transport"])
def test_fast_is_what_was_asked_for(flag):
    assert resolve(**{flag: "fast"}).backend == "fast"


def test_the_environment_counts_where_no_flag_is_given():
    env = {"EPE_AGKV_TRANSPORT": "nccl"}
    assert resolve(env).backend == "nccl"
    assert resolve(env, agkv_transport="auto").backend == "auto"


def test_a_flag_goes_before_a_fast_environment():
    assert resolve({"EPE_AGKV_TRANSPORT": "fast"}, cp_backend="nccl").backend == "nccl"


def test_a_fast_environment_counts_where_no_flag_is_given():
    assert resolve({"EPE_AGKV_TRANSPORT": "fast"}).backend == "fast"


def test_the_environment_of_the_other_method_has_no_say():
    assert resolve({"EPE_ULYSSES_TRANSPORT": "fast"}).backend == "auto"


@pytest.mark.parametrize("variable", ["EPE_AGKV_TRANSPORT", "EPE_ULYSSES_TRANSPORT"])
def test_nonsense_in_the_environment_is_an_error_even_below_a_flag(variable):
    with pytest.raises(BadSetting, match="'fats' is not one of auto, nccl, fast") as caught:
        resolve({variable: "fats"}, cp_backend="nccl")
    assert caught.value.path == variable


def test_no_combination_is_settled_silently_against_a_flag():
    """Whatever is given and accepted is what is in force."""
    values = (None, "auto", "nccl", "fast")
    for backend, agkv, ulysses in product((None, "nccl", "fast"), values, values):
        given = {"cp_backend": backend, "agkv_transport": agkv, "ulysses_transport": ulysses}
        given = {flag: value for flag, value in given.items() if value is not None}
        try:
            chosen = resolve(**given).backend
        except BadSetting:
            continue
        assert set(given.values()) - {"auto"} <= {chosen}
