from __future__ import annotations

import asyncio
import base64

import pytest
from aiohttp import ClientSession, ClientTimeout

from epe.errors import BadRequest, Cancelled, NonFinite
from epe.messages import Progress, Stage
from tests.server.scenes import admit
from tests.server.stand_in import StandIn, until

IMAGES = "/v1/images/generations"
REQUESTS = "/v1/requests"
BODY = {"prompt": "a cat", "size": "64x64", "seed": 5}


async def post(client: ClientSession, path: str, body: dict, *, key: str | None = None) -> tuple[int, dict]:
    headers = {} if key is None else {"Idempotency-Key": key}
    async with client.post(path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def get(client: ClientSession, path: str) -> tuple[int, dict]:
    async with client.get(path) as response:
        return response.status, await response.json()


async def accepted(client: ClientSession, **fields: object) -> dict:
    status, job = await post(client, REQUESTS, {**BODY, **fields})
    assert status == 202, job
    return job


async def ended(client: ClientSession, job: dict) -> dict:
    async with asyncio.timeout(10):
        while True:
            _, now = await get(client, f"{REQUESTS}/{job['id']}")
            if now["ended_at"] is not None:
                return now
            await asyncio.sleep(0.01)


async def test_a_job_is_answered_at_once_and_fetched_when_it_has_ended(client, engine):
    engine.gate.clear()
    async with client.post(REQUESTS, json={**BODY, "n": 2}) as response:
        assert response.status == 202
        job = await response.json()
        assert response.headers["Location"] == f"{REQUESTS}/{job['id']}"
    assert (job["status"], job["progress"], job["predicted_s"], job["data"]) == ("queued", 0, 2.5, [])
    async with client.get(f"{REQUESTS}/{job['id']}/content") as response:
        assert response.status == 409
    engine.gate.set()
    job = await ended(client, job)
    assert (job["status"], job["progress"], job["error"]) == ("completed", 100, None)
    assert job["expires_at"] == job["ended_at"] + 86400
    assert [picture["seed"] for picture in job["data"]] == [5, 6]
    files = []
    for picture in job["data"]:
        async with client.get(picture["content"]) as response:
            assert (response.status, response.content_type) == (200, "image/png")
            files.append(await response.read())
            assert len(files[-1]) == picture["num_bytes"]
    assert files[0] != files[1]
    _, drawn = await post(client, IMAGES, {**BODY, "n": 2})
    assert [base64.b64decode(each["b64_json"]) for each in drawn["data"]] == files


async def test_a_job_goes_on_when_its_client_leaves(client, engine):
    engine.gate.clear()
    job = await accepted(client)
    await client.close()
    engine.gate.set()
    async with ClientSession(client._base_url) as later:
        assert (await ended(later, job))["status"] == "completed"
    assert engine.cancelled == []


async def test_progress_grows_with_the_steps(client, engine):
    engine.gate.clear()
    job = await accepted(client, num_inference_steps=4)
    seen = []
    for step in (1, 3, 2, 4):
        engine.watchers[job["id"]](
            Progress(request_id=job["id"], stage=Stage.DENOISE, step=step, num_steps=4)
        )
        _, now = await get(client, f"{REQUESTS}/{job['id']}")
        seen.append((now["status"], now["progress"]))
    assert seen == [("in_progress", 25), ("in_progress", 75), ("in_progress", 75), ("in_progress", 99)]


async def test_delete_cancels_a_job_and_forgets_an_ended_one(client, engine):
    engine.gate.clear()
    job = await accepted(client)
    path = f"{REQUESTS}/{job['id']}"
    async with client.delete(path) as response:
        assert (response.status, (await response.json())["status"]) == (200, "cancelled")
    assert engine.cancelled == [job["id"]]
    status, now = await get(client, f"{path}/content")
    assert (status, now["error"]["code"]) == (410, "cancelled")
    async with client.delete(path) as response:
        assert (await response.json())["forgotten"] is True
    status, now = await get(client, path)
    assert (status, now["error"]["code"], now["error"]["param"]) == (404, "not_found", "id")


async def test_a_request_that_is_not_kept_is_cancelled_by_its_id(client, engine):
    admit(engine, "waits", num_steps=4)
    status, now = await get(client, f"{REQUESTS}/waits")
    assert (status, now["status"], now["ended_at"], now["error"]) == (200, "queued", None, None)
    async with client.delete(f"{REQUESTS}/waits") as response:
        told = await response.json()
    assert (response.status, told["id"], told["status"], told["forgotten"]) == (
        200,
        "waits",
        "cancelled",
        True,
    )
    assert told["error"]["code"] == "cancelled"
    assert engine.cancelled == ["waits"]
    async with client.delete(f"{REQUESTS}/waits") as response:
        assert response.status == 404


async def test_one_picture_of_a_kept_request_is_not_cancelled_alone(client, engine):
    engine.gate.clear()
    job = await accepted(client, n=2)
    admit(engine, f"{job['id']}-1")
    async with client.delete(f"{REQUESTS}/{job['id']}-1") as response:
        assert response.status == 404
    assert engine.cancelled == []


async def test_whoever_waits_for_a_request_that_is_cancelled_is_told_so_and_not_to_send_it_again(
    client, engine
):
    engine.failures[5] = Cancelled("the request was cancelled")
    status, reply = await post(client, IMAGES, BODY)
    assert (status, reply["error"]["code"]) == (410, "cancelled")


async def test_a_failed_job_is_answered_200_and_says_why(client, engine):
    engine.failures[5] = NonFinite("latents have NaN", stage="denoise", step=3)
    job = await ended(client, await accepted(client))
    assert job["status"] == "failed"
    assert job["error"]["code"] == "non_finite"
    assert (job["error"]["stage"], job["error"]["step"]) == ("denoise", 3)
    async with client.get(f"{REQUESTS}/{job['id']}/content") as response:
        assert (response.status, response.headers["x-should-retry"]) == (500, "false")


async def test_what_is_refused_is_no_job(client, engine):
    engine.refusal = BadRequest("no lane has the memory", param="size")
    assert (await post(client, REQUESTS, BODY))[0] == 400
    assert (await post(client, REQUESTS, {**BODY, "size": "1x"}))[0] == 400
    assert (await post(client, REQUESTS, {**BODY, "model": "other"}))[0] == 404
    assert engine.submitted == []


@pytest.mark.parametrize("index", ["2", "-1", "x", "99999", "\u00b2"])
async def test_an_index_that_is_not_there_is_named(client, index):
    job = await ended(client, await accepted(client, n=2))
    async with client.get(f"{REQUESTS}/{job['id']}/content", params={"index": index}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "index"


async def test_an_unknown_id_is_404_on_every_route(client):
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        async with client.request(method, f"{REQUESTS}/job-0{path}") as response:
            assert response.status == 404
            assert "is kept for 86400 s" in (await response.json())["error"]["message"]


async def test_the_same_key_draws_once_and_gives_the_same_answer(client, engine):
    replies = await asyncio.gather(*(post(client, IMAGES, {**BODY, "n": 2}, key="k") for _ in range(4)))
    replies.append(await post(client, IMAGES, dict(reversed({**BODY, "n": 2}.items())), key="k"))
    assert [status for status, _ in replies] == [200] * 5
    assert len({base64.b64decode(reply["data"][1]["b64_json"]) for _, reply in replies}) == 1
    assert len({reply["epe"]["request_id"] for _, reply in replies}) == 1
    assert len(engine.submitted) == 2


async def test_a_key_holds_for_one_route_and_one_body(client, engine):
    assert (await post(client, IMAGES, BODY, key="k"))[0] == 200
    for path, body in ((IMAGES, {**BODY, "seed": 6}), (REQUESTS, BODY)):
        status, reply = await post(client, path, body, key="k")
        assert (status, reply["error"]["param"]) == (400, "Idempotency-Key")
    assert len(engine.submitted) == 1
    first, second = [await post(client, REQUESTS, BODY, key="j") for _ in range(2)]
    assert (first[1]["id"], len(engine.submitted)) == (second[1]["id"], 2)


@pytest.mark.parametrize("key", ["", "two words", "x" * 256])
async def test_a_key_that_is_no_key_is_refused(client, engine, key):
    status, reply = await post(client, IMAGES, BODY, key=key)
    assert (status, reply["error"]["param"]) == (400, "Idempotency-Key")
    assert engine.submitted == []


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_client_that_gives_up_and_tries_again_has_at_most_one_running_copy(client, engine, key):
    """Without a key the request of the closed connection is cancelled; with one the next try finds it."""
    engine.gate.clear()
    headers = {} if key is None else {"Idempotency-Key": key}
    for attempt in range(3):
        with pytest.raises(TimeoutError):
            await client.post(IMAGES, json=BODY, headers=headers, timeout=ClientTimeout(total=0.2))
        await until(lambda attempt=attempt: len(engine.cancelled) == (0 if key else attempt + 1))
    assert len(engine.submitted) - len(engine.cancelled) == (1 if key else 0)
    assert len(engine.submitted) == (1 if key else 3)
    engine.gate.set()
    assert (await post(client, IMAGES, BODY, key=key))[0] == 200
    assert len(engine.submitted) == (1 if key else 4)


async def test_a_failed_request_fails_again_with_its_key(client, engine: StandIn):
    engine.failures[5] = NonFinite("latents have NaN", stage="denoise", step=3)
    first = await post(client, IMAGES, BODY, key="k")
    engine.failures.clear()
    assert await post(client, IMAGES, BODY, key="k") == first
    assert first[0] == 500
