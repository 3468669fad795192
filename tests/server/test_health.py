from __future__ import annotations

import pytest


async def test_a_running_service_is_healthy_and_shows_its_ranks(client):
    async with client.get("/health") as response:
        health = await response.json()
    assert response.status == 200
    assert (health["status"], health["model"]) == ("running", "image")
    assert (health["num_waiting"], health["num_running"], health["num_finished"]) == (0, 1, 7)
    assert [(rank["rank"], rank["state"]) for rank in health["ranks"]] == [(0, "idle"), (1, "busy")]
    costs = {"origin": "kept", "num_tasks": 5, "least_tokens": 128, "most_tokens": 2048}
    assert health["costs"] == costs
    assert health["policy"] == {"name": "Elastic", "fault": "Mine: it raised KeyError: 'x'"}


@pytest.mark.parametrize("phase", ["loading", "warming", "draining", "failed"])
async def test_every_other_phase_is_503_with_the_phase_and_the_reason(client, engine, phase):
    engine.is_in(phase, reason="rank 1 is lost")
    async with client.get("/health") as response:
        health = await response.json()
    assert (response.status, response.content_type) == (503, "application/json")
    assert (health["status"], health["reason"]) == (phase, "rank 1 is lost")


async def test_a_planner_that_is_gone_is_a_failed_service(client, engine):
    engine.silent = True
    async with client.get("/health") as response:
        health = await response.json()
    assert (response.status, health["status"], health["reason"]) == (503, "failed", "the planner is gone")


async def test_health_is_answered_while_pictures_are_drawn(client, engine):
    engine.gate.clear()
    drawing = client.post("/v1/images/generations", json={"prompt": "x", "size": "64x64"})
    async with client.get("/health") as response:
        assert response.status == 200
    engine.gate.set()
    async with drawing as response:
        assert response.status == 200


async def test_the_models_are_listed_under_each_of_their_names(client):
    async with client.get("/v1/models") as response:
        reply = await response.json()
    assert reply["object"] == "list"
    assert [model["id"] for model in reply["data"]] == ["image", "zimage", "gpt-image-1"]
    assert {model["object"] for model in reply["data"]} == {"model"}


async def test_one_model_is_shown_and_another_is_not_found(client):
    async with client.get("/v1/models/zimage") as response:
        assert (await response.json())["id"] == "zimage"
    async with client.get("/v1/models/other") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")
