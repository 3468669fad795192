from __future__ import annotations

import pytest
from aiohttp import ClientSession

from epe import errors
from epe.errors import (
    BadRequest,
    EpeError,
    Expired,
    Gone,
    NonFinite,
    OutOfMemory,
    Overloaded,
    Refused,
    StartFailed,
    TaskFailed,
)
from epe.server.answers import judge

PATH = "/v1/images/generations"


async def draw(client: ClientSession, **body: object):
    async with client.post(PATH, json={"prompt": "x", "size": "64x64", "seed": 5, **body}) as response:
        return response, (await response.json())["error"]


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (BadRequest("prompt has 900 tokens; 512 are allowed", param="prompt"), 400, "invalid_value"),
        (TaskFailed("a block raised", stage="denoise", step=3), 500, "task_failed"),
        (NonFinite("NaN in the latents", stage="denoise", step=9), 500, "non_finite"),
        (OutOfMemory("no memory for the decode", stage="decode"), 500, "out_of_memory"),
        (Expired("the deadline passed"), 504, "deadline_missed"),
        (Gone("the planner ended"), 503, "gone"),
        (Overloaded("the mailbox is full"), 429, "overloaded"),
        (StartFailed("the service ends"), 503, "unavailable"),
        (TimeoutError(), 503, "gone"),
        (EpeError("something else"), 500, "internal_error"),
    ],
)
async def test_each_error_of_a_request_has_its_status_and_code(client, engine, failure, status, code):
    engine.failures[5] = failure
    response, error = await draw(client)
    assert (response.status, error["code"]) == (status, code)
    assert error["message"]
    assert error["param"] == getattr(failure, "param", None)


def test_every_error_of_ours_has_a_verdict_of_its_own():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not EpeError]
    assert [kind for kind in kinds if judge(kind("x"), "running").code == "internal_error"] == []


async def test_a_failure_says_where_it_happened(client, engine):
    engine.failures[5] = TaskFailed("a block raised", stage="denoise", step=3)
    _, error = await draw(client)
    assert (error["stage"], error["step"]) == ("denoise", 3)


@pytest.mark.parametrize("failure", [TaskFailed("x"), NonFinite("x"), OutOfMemory("x"), Expired("x")])
async def test_clients_are_told_not_to_repeat_what_will_fail_again(client, engine, failure):
    engine.failures[5] = failure
    response, _ = await draw(client)
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(("given_s", "told"), [(0.2, "1"), (3.2, "4"), (500, "60")])
async def test_a_full_queue_says_when_to_come_again(client, engine, given_s, told):
    engine.refusal = Refused("the queue is full", retry_after_s=given_s)
    response, error = await draw(client)
    assert (response.status, error["type"], error["code"]) == (429, "rate_limit_error", "overloaded")
    assert response.headers["Retry-After"] == told
    assert "x-should-retry" not in response.headers


async def test_a_deadline_that_cannot_be_held_is_not_to_be_sent_again(client, engine):
    engine.refusal = Refused("the deadline would be missed")
    response, error = await draw(client)
    assert (response.status, error["code"]) == (429, "refused")
    assert response.headers["x-should-retry"] == "false"
    assert "Retry-After" not in response.headers


@pytest.mark.parametrize("phase", ["loading", "warming", "draining", "failed"])
async def test_a_refusal_of_a_service_that_is_not_running_is_503_with_its_phase(client, engine, phase):
    engine.refusal = Refused("not now")
    engine.is_in(phase)
    response, error = await draw(client)
    assert (response.status, error["code"]) == (503, phase)
    assert response.headers["Retry-After"] == "5"


async def test_a_defect_is_answered_without_its_inside(client, engine, capsys):
    engine.failures[5] = KeyError("secret")
    async with client.post(
        PATH, json={"prompt": "x", "seed": 5}, headers={"x-request-id": "abc"}
    ) as response:
        text = await response.text()
    assert response.status == 500
    assert "secret" not in text
    assert "abc" in text


async def test_one_failed_picture_of_several_fails_the_reply_and_cancels_the_others(client, engine):
    engine.held.update({5, 7})
    engine.failures[6] = TaskFailed("a block raised")
    response, error = await draw(client, n=3)
    assert (response.status, error["code"]) == (500, "task_failed")
    first, _, third = (request.id for request in engine.submitted)
    assert set(engine.cancelled) == {first, third}


async def test_a_path_that_does_not_exist_is_answered_in_the_shape_of_an_error(client):
    async with client.get("/v1/nothing") as response:
        reply = await response.json()
    assert (response.status, reply["error"]["code"]) == (404, "not_found")


async def test_a_wrong_method_is_answered_in_the_shape_of_an_error(client):
    async with client.get(PATH) as response:
        reply = await response.json()
    assert (response.status, reply["error"]["code"]) == (405, "method_not_allowed")
    assert response.headers["Allow"] == "POST"


async def test_a_good_request_id_comes_back_and_names_the_work(client, engine):
    headers = {"x-request-id": "trace-1.a_B"}
    for _ in range(2):
        async with client.post(PATH, json={"prompt": "x", "size": "64x64"}, headers=headers) as response:
            assert response.headers["x-request-id"] == "trace-1.a_B"
    first, second = (request.id for request in engine.submitted)
    assert first.startswith("trace-1.a_B-")
    assert first != second


@pytest.mark.parametrize("bad", ["a b", "x" * 65, "ä", "<script>"])
async def test_a_bad_request_id_is_replaced(client, bad):
    async with client.get("/health", headers={"x-request-id": bad}) as response:
        assert response.headers["x-request-id"].startswith("req-")
