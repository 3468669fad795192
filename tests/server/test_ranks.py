"""`/v1/ranks`: what an operator may do to ranks over HTTP."""

from __future__ import annotations

import msgspec
import pytest

from epe.errors import Conflict
from epe.messages import RestartStatus, Status


async def test_the_ranks_are_listed_with_their_states(client):
    async with client.get("/v1/ranks") as response:
        reply = await response.json()
    assert response.status == 200
    assert [(rank["rank"], rank["state"]) for rank in reply["data"]] == [(0, "idle"), (1, "busy")]
    assert reply["restart"] is None


@pytest.mark.parametrize(
    ("action", "state"), [("cordon", "cordoned"), ("drain", "draining"), ("readmit", "idle")]
)
async def test_a_rank_is_answered_as_it_is_now(client, action, state):
    async with client.post("/v1/ranks/1", json={"action": action}) as response:
        rank = await response.json()
    assert response.status == 200
    assert (rank["rank"], rank["state"]) == (1, state)


@pytest.mark.parametrize("name", ["2", "-1", "1.0", "one", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 30])
async def test_an_unknown_rank_is_404(client, name):
    async with client.post(f"/v1/ranks/{name}", json={"action": "drain"}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"], error["param"]) == (404, "not_found", "rank")


async def test_a_rank_that_is_gone_is_409_with_the_reason(client, engine):
    engine.is_with(1, state="lost")
    async with client.post("/v1/ranks/1", json={"action": "readmit"}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (409, "conflict")
    assert "rank 1 is lost" in error["message"]


async def test_a_restart_is_answered_as_soon_as_it_has_begun(serving, engine):
    async def restart() -> Status:
        engine.status_now = msgspec.structs.replace(
            engine.status_now, restart=RestartStatus(rank=0, waiting=(1,))
        )
        return engine.status_now

    async with serving(restart=restart) as client:
        async with client.post("/v1/ranks", json={"action": "restart"}) as response:
            reply = await response.json()
        assert (response.status, reply["restart"]) == (202, {"rank": 0, "waiting": [1]})
        async with client.get("/health") as response:
            assert (await response.json())["restart"] == reply["restart"]


async def test_a_restart_that_cannot_be_is_409(serving):
    async def restart() -> Status:
        raise Conflict("restart: dtype is 'auto' in force and 'bfloat16' in the stage file")

    async with (
        serving(restart=restart) as client,
        client.post("/v1/ranks", json={"action": "restart"}) as response,
    ):
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (409, "conflict")
    assert "dtype" in error["message"]


@pytest.mark.parametrize("path", ["/v1/ranks", "/v1/ranks/1"])
@pytest.mark.parametrize("body", [{}, {"action": "explode"}, {"action": "drain", "force": True}])
async def test_another_body_is_400_and_nothing_is_done(client, engine, path, body):
    before = engine.status_now
    async with client.post(path, json=body) as response:
        assert response.status == 400
    assert engine.status_now == before


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}])
async def test_a_page_of_another_origin_cannot_drain_a_rank_behind_the_browsers_back(client, engine, headers):
    before = engine.status_now
    async with client.post(
        "/v1/ranks/1", data=b'{"action": "drain"}', headers=headers, skip_auto_headers=("Content-Type",)
    ) as response:
        assert response.status == 415
    assert engine.status_now == before
