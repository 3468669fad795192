"""What clients ask of FlexCache and what they are told of it."""

from __future__ import annotations

import asyncio
import time
from asyncio import ensure_future
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from aiohttp import ClientSession
from msgspec import ValidationError, convert
from msgspec.structs import fields

from epe.cache import CacheRules
from epe.config.request import resolve_request
from epe.messages import ActiveStrategy, FreeCache, TaylorSeer
from epe.server import image_body
from epe.server.image_body import ImageBody, resolved
from tests.cache.profiles import made_up

PATH = "/v1/images/generations"


async def post(client: ClientSession, **body: Any) -> tuple[int, dict[str, Any]]:
    async with client.post(PATH, json={"prompt": "a cube", **body}) as response:
        return response.status, await response.json()


async def test_a_strategy_becomes_the_plan_of_each_picture(client, engine):
    status, _ = await post(client, num_inference_steps=20, n=2, cache={"strategy": "taylorseer"})
    assert status == 200
    for request in engine.submitted:
        assert request.reuse.strategy == TaylorSeer(warmup_steps=1)
        assert len(request.reuse.computed) < 20


async def test_without_one_the_stages_default_counts_and_none_is_none(serving, engine):
    rules = CacheRules(profile=made_up(), default=FreeCache(fresh_budget=9))
    async with serving(cache_rules=rules) as client:
        for cache in ({}, {"cache": {"strategy": "none"}}):
            await post(client, num_inference_steps=20, **cache)
    first, second = engine.submitted
    assert len(first.reuse.computed) == 9
    assert second.reuse is None


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        ({"strategy": "magic"}, "cache.strategy: invalid value 'magic'; allowed are none, magcache"),
        ({}, "cache.strategy is missing"),
        ({"strategy": "magcache", "tresh": 1}, "cache: field tresh is not known there; known are "),
        ({"strategy": "magcache", "threshold": -1}, "cache.threshold is not allowed: expected float > 0.0"),
        ({"strategy": "magcache"}, "supported are taylorseer"),
        (
            {"strategy": "taylorseer", "first_enhance": 2**64},
            "cache.first_enhance is not allowed: expected int <=",
        ),
        (
            {"strategy": "teacache", "coefficients": [1e300]},
            "cache.coefficients[0] is not allowed: expected float <=",
        ),
        ("magcache", "expected object"),
    ],
)
async def test_what_cannot_be_had_is_a_400_that_says_why(client, engine, cache, message):
    status, reply = await post(client, num_inference_steps=20, cache=cache)
    assert (status, reply["error"]["param"]) == (400, "cache")
    assert message in reply["error"]["message"]
    assert not engine.submitted


async def test_few_steps_skip_nothing(client, engine):
    await post(client, num_inference_steps=8, cache={"strategy": "taylorseer"})
    (request,) = engine.submitted
    assert request.reuse.computed == tuple(range(8))


@pytest.mark.parametrize("struct", get_args(ActiveStrategy))
def test_no_number_of_a_strategy_is_too_large_for_the_messages_between_processes(struct):
    """One of more than 64 bits ended the planner, and every request with it."""
    name = struct.__struct_config__.tag
    counts = [field.name for field in fields(struct) if "int" in str(field.type)]
    assert {"warmup_steps", "cooldown_steps"} <= {*counts}
    for count in counts:
        with pytest.raises(ValidationError, match=rf"<= \d+ - at `\$\.{count}`"):
            convert({"strategy": name, count: 2**64}, ActiveStrategy)


async def test_many_plans_at_once_are_made_one_after_the_other(client, monkeypatch):
    """They took turns with the loop, which stood still for seconds; and equal ones were all made."""
    at_once = 0

    def plan(*given, **named):
        nonlocal at_once
        assert at_once == 0, "another plan is being made"
        at_once += 1
        time.sleep(0.01)
        at_once -= 1
        return resolve_request(*given, **named)

    monkeypatch.setattr(image_body, "resolve_request", plan)
    asked = {"num_inference_steps": 20, "cache": {"strategy": "taylorseer"}}
    answers = await asyncio.gather(*(post(client, **asked) for _ in range(8)))
    assert [status for status, _ in answers] == [200] * 8


async def test_a_plan_whose_client_has_left_ends_before_the_next_one_begins():
    """Clients who came and left had as many made at once as there were threads; those that wait are not made at all."""
    begun, goes_on = [], Event()
    with ThreadPoolExecutor(1) as planning:
        service = SimpleNamespace(cache_rules=CacheRules(), planning=planning)
        body = ImageBody(cache=TaylorSeer())

        def plan(name):
            begun.append(name)
            return goes_on.wait(10)

        first, second, third = (ensure_future(resolved(body, service, partial(plan, name))) for name in "abc")
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await asyncio.wait([first, second])
        goes_on.set()
        assert await third
    assert begun == ["a", "c"]
