"""`POST /v1/plan` and `GET /v1/requests`."""

from __future__ import annotations

import pytest

from epe.config.request import resolve_request
from epe.errors import Refused
from epe.families import family
from epe.messages import Accepted, Live, Progress, Stage
from epe.server.image_body import PlanBody
from tests.server.test_images import BAD


async def plan(client, **body):
    async with client.post("/v1/plan", json=body) as response:
        return response.status, await response.json()


async def test_a_plan_says_what_pictures_would_cost_and_draws_nothing(client, engine):
    status, reply = await plan(client, prompt="x", size="128x64", n=2, seed=4, num_inference_steps=8)
    assert status == 200
    assert engine.submitted == []
    assert [each.seed for each in engine.predicted] == [4, 5]
    assert (reply["size"], reply["num_inference_steps"], reply["predicted_s"]) == ("128x64", 8, 3.5)
    assert [(each["seed"], each["predicted_s"]) for each in reply["data"]] == [(4, 2.5), (5, 3.5)]
    assert reply["widths"][1] == {"width": 2, "denoise_s": 5.0, "rank_s": 10.0}
    assert (reply["encode_s"], reply["decode_s"], reply["finish_s"]) == (0.1, 0.2, 0.3)


async def test_a_plan_says_that_a_deadline_would_be_missed(client):
    _, reply = await plan(client, prompt="x", deadline_ms=1)
    assert (reply["late"], reply["data"][0]["late"]) == (True, True)


async def test_a_plan_is_refused_as_the_pictures_would_be(client, engine):
    engine.refusal = Refused("the queue is full", retry_after_s=3)
    status, reply = await plan(client, prompt="x")
    assert (status, reply["error"]["code"]) == (429, "overloaded")


@pytest.mark.parametrize("field", sorted(set(BAD) & set(PlanBody.__struct_fields__)))
async def test_a_bad_value_in_a_plan_names_its_field(client, engine, field):
    for value in BAD[field]:
        status, reply = await plan(client, **{"prompt": "x", field: value})
        assert (status, reply["error"]["param"]) == (400, field)
    assert engine.predicted == []


def live(name: str, *, step: int | None = None) -> Live:
    request = resolve_request(
        family("zimage"), id=name, prompt="a secret", seed=3, client_id="who", deadline_s=4
    )
    accepted = Accepted(request_id=name, predicted_s=2.5, predicted_from="measured")
    done = Progress(request_id=name, stage=Stage.DENOISE, step=step or 0, num_steps=50, ranks=(0, 1))
    return Live(request=request, accepted=accepted, arrived_at=100.0, progress=None if step is None else done)


async def test_requests_are_listed_without_prompts_and_names(client, engine):
    engine.live = [live("a", step=7), live("b")]
    async with client.get("/v1/requests") as response:
        text, reply = await response.text(), await response.json()
    assert response.status == 200
    assert "secret" not in text
    assert "who" not in text
    first, second = reply["data"]
    assert (first["id"], first["status"], first["step"], first["ranks"]) == ("a", "in_progress", 7, [0, 1])
    assert (second["id"], second["status"], second["stage"]) == ("b", "queued", None)
    assert (first["size"], first["deadline_ms"], first["predicted_s"]) == ("1024x1024", 4000.0, 2.5)
    assert (reply["total"], reply["has_more"]) == (2, False)


async def test_a_long_list_is_cut_and_says_so(client, engine):
    engine.live = [live(str(i)) for i in range(200)]
    for query, num_listed in (("", 100), ("?limit=3", 3), ("?limit=1000", 200)):
        async with client.get(f"/v1/requests{query}") as response:
            reply = await response.json()
        assert (len(reply["data"]), reply["total"], reply["has_more"]) == (num_listed, 200, num_listed < 200)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "limit=1&limit=2", "limit=", "limit=1e3"]
)
async def test_a_wrong_limit_is_named(client, query):
    async with client.get(f"/v1/requests?{query}") as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "limit")
