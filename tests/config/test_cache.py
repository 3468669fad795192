"""FlexCache in the stage file."""

from __future__ import annotations

import json

import pytest
import yaml

from epe.config.describe import describe
from epe.config.load import build_stage
from epe.config.request import resolve_request
from epe.errors import BadRequest, BadSetting
from epe.messages import Pab, Reuse, TaylorSeer

FREE = {"strategy": "freecache"}


def test_without_the_section_requests_may_ask_for_all_but_pab(settings):
    rules = build_stage(settings, env={}).cache_rules
    assert rules.default is None
    assert "pab" not in rules.allowed
    assert rules.max_bytes == 256 * 2**20


def test_a_default_is_as_a_request_would_say_it_and_is_shown_again(settings):
    cache = {"default": {"strategy": "taylorseer", "fresh_threshold": 2}, "allowed": ["taylorseer", "pab"]}
    stage = build_stage({**settings, "cache": cache}, env={})
    assert stage.cache.default == TaylorSeer(fresh_threshold=2)
    assert stage.cache_rules.attention == ("self", "joint")
    assert build_stage(yaml.safe_load(describe(stage)), env={}).cache == stage.cache


@pytest.mark.parametrize(
    ("cache", "path", "message"),
    [
        ({"default": FREE}, "cache.default", "supported are taylorseer, pab"),
        ({"default": {"strategy": "lru"}}, "cache.default.strategy", "'lru' is not one of magcache, .*pab"),
        ({"default": "taylorseer"}, "cache.default", "expected a mapping or nothing, got 'taylorseer'"),
        (
            {"default": {"strategy": "teacache", "coefficients": [float("nan")]}},
            "cache.default.coefficients",
            "nan",
        ),
        (
            {"default": {"strategy": "taylorseer", "order": 2}},
            "cache.default.order",
            "did you mean max_order|known here are .*max_order",
        ),
        ({"allowed": ["lru"]}, "cache.allowed[0]", "'lru' is not one of magcache, .*pab"),
        ({"allowed": "freecache"}, "cache.allowed", "expected a list, got 'freecache'"),
        ({"memory_mib": 2**70}, "cache.memory_mib", "expected a whole number <= 1099511627776"),
        ({"least_computed": 1.5}, "cache.least_computed", "1.5"),
        ({"limit": 1}, "cache.limit", "not known"),
    ],
)
def test_what_cannot_be_is_refused_at_its_path(settings, cache, path, message):
    with pytest.raises(BadSetting, match=message) as caught:
        build_stage({**settings, "cache": cache}, env={})
    assert caught.value.path.startswith(path)


# Z-Image as published: 32 modules of attention on the rows of a picture, 30 of them on those of its text.
ZIMAGE = {"dim": 3840, "n_layers": 30, "n_refiner_layers": 2}


def test_what_pab_would_keep_is_known_before_and_bounded(settings, checkpoint):
    (checkpoint / "transformer").mkdir()
    (checkpoint / "transformer" / "config.json").write_text(json.dumps(ZIMAGE))
    kept = 2 * 2 * 3840 * (32 * 4096 + 30 * 512)  # bytes of a value, branches, values of a row, rows
    cache = {"allowed": ["pab"], "memory_mib": 2145}

    def ask(memory_mib: int, strategy: Pab | None, **default: object) -> Reuse | None:
        stage = build_stage(
            {**settings, "dtype": "bfloat16", "cache": {**cache, "memory_mib": memory_mib, **default}}, env={}
        )
        request = resolve_request(
            stage.family,
            prompt="a",
            num_steps=20,
            height=1024,
            width=1024,
            cache=strategy,
            cache_rules=stage.cache_rules,
        )
        return request.reuse

    reuse = ask(2145, Pab())
    assert reuse is not None
    assert reuse.attention_bytes == kept
    with pytest.raises(BadRequest, match="pab would keep 2145 MiB of this request; allowed are 2144"):
        ask(2144, Pab())
    assert ask(1000, None, default={"strategy": "pab"}) is None, "nobody has asked for it: all is computed"


def test_a_default_that_the_model_cannot_have_is_refused_for_a_stage_of_few_steps_too(settings):
    changed = {"factory_args": settings["factory_args"] | {"num_steps": 8}, "cache": {"default": FREE}}
    with pytest.raises(BadSetting, match="supported are taylorseer, pab"):
        build_stage({**settings, **changed}, env={})


def test_the_stages_limits_hold_for_requests(settings):
    cache = {"allowed": ["taylorseer"], "least_computed": 0.6, "memory_mib": 1}
    stage = build_stage({**settings, "cache": cache}, env={})

    def ask(strategy: TaylorSeer, **size: int) -> None:
        resolve_request(
            stage.family, prompt="a", num_steps=20, cache=strategy, cache_rules=stage.cache_rules, **size
        )

    ask(TaylorSeer(fresh_threshold=2), height=512, width=512)
    with pytest.raises(BadRequest, match="computes at least 12"):
        ask(TaylorSeer(fresh_threshold=4), height=512, width=512)
    with pytest.raises(BadRequest, match="MiB of this request; allowed are 1"):
        ask(TaylorSeer(fresh_threshold=2), height=1024, width=1024)
