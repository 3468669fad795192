"""What one request, and one client, may ask for."""

from __future__ import annotations

import asyncio

import pytest

from epe.config.stage import RequestLimits
from epe.server.settings import HttpSettings
from tests.server.stand_in import until
from tests.server.test_images import post


def limited(**limits: int) -> HttpSettings:
    return HttpSettings(limits=RequestLimits(**limits))


async def test_a_body_above_the_limit_of_the_stage_is_refused(serving, engine):
    async with serving(settings=limited(body_kb=1)) as client:
        status, reply = await post(client, prompt="x" * 1100)
    assert (status, reply["error"]["code"]) == (413, "request_entity_too_large")
    assert not engine.submitted


@pytest.mark.parametrize("param", ["prompt", "negative_prompt"])
async def test_a_prompt_above_the_limit_of_the_stage_is_refused(serving, engine, param):
    async with serving(settings=limited(prompt_chars=100)) as client:
        status, reply = await post(client, **{"prompt": "x", param: "y" * 101})
        assert (await post(client, prompt="x" * 100, size="64x64"))[0] == 200
    assert (status, reply["error"]["param"]) == (400, param)
    assert "101 characters; at most 100" in reply["error"]["message"]


@pytest.mark.parametrize(
    ("more", "allowed"),
    [({}, True), ({"n": 2}, False), ({"size": "1024x2048"}, False), ({"num_inference_steps": 11}, False)],
)
async def test_more_work_than_the_stage_allows_is_refused(serving, engine, more, allowed):
    body = {"prompt": "x", "size": "1024x1024", "num_inference_steps": 10, **more}
    async with serving(settings=limited(megapixel_steps=11)) as client:
        status, reply = await post(client, **body)
    assert status == (200 if allowed else 400)
    if not allowed:
        assert reply["error"]["param"] == "size"
        assert "at most 11 are allowed" in reply["error"]["message"]
        assert not engine.submitted


async def test_one_client_has_only_so_many_pictures_at_once(serving, engine):
    engine.gate.clear()
    async with serving(settings=limited(at_once=3)) as client:
        drawing = asyncio.ensure_future(post(client, prompt="x", size="64x64", n=2))
        await until(lambda: engine.num_running == 2)
        async with client.post("/v1/images/generations", json={"prompt": "x", "n": 2}) as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"], response.headers["Retry-After"]) == (429, "overloaded", "1")
        engine.gate.set()
        assert (await drawing)[0] == 200
        # What has ended counts no more, and nothing was counted for what was refused.
        assert (await post(client, prompt="x", size="64x64", n=3))[0] == 200
        status, reply = await post(client, prompt="x", n=4)
    assert (status, reply["error"]["param"]) == (400, "n")
