"""The table of routes: what it promises is what happens."""

from __future__ import annotations

import re

import pytest

from epe.server.image_body import ImageBody
from epe.server.routes import ROUTES
from epe.server.settings import HttpSettings

PATHS = sorted({route.path for route in ROUTES})


async def test_the_document_has_every_route(client):
    async with client.get("/openapi.json") as response:
        document = await response.json()
    assert document["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described == {(route.method, route.path) for route in ROUTES}
    names = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(set(names)) == len(names)


async def test_the_document_says_what_the_model_allows(client):
    async with client.get("/openapi.json") as response:
        schema = (await response.json())["components"]["schemas"]["ImageBody"]
    assert set(schema["properties"]) == set(ImageBody.__struct_fields__)
    assert schema["required"] == ["prompt"]
    assert schema["additionalProperties"] is False
    (height, _) = schema["properties"]["height"]["anyOf"]
    assert (height["minimum"], height["maximum"], height["multipleOf"]) == (64, 4096, 16)


async def test_every_reference_in_the_document_leads_somewhere(client):
    async with client.get("/openapi.json") as response:
        text, document = await response.text(), await response.json()
    there = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(re.findall(r'"\$ref": ?"([^"]*)"', text)) <= there


@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE", "DELETE"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_wrong_method_is_answered_in_the_shape_of_an_error(client, path, method):
    if any(route.method == method and route.path == path for route in ROUTES):
        pytest.skip("this one is right")
    async with client.request(method, path.format(model="x", name="x", id="x", rank="0")) as response:
        reply = await response.json()
    assert (response.status, reply["error"]["code"]) == (405, "method_not_allowed")
    rights = {route.method for route in ROUTES if route.path == path}
    assert rights <= set(response.headers["Allow"].split(","))


@pytest.mark.parametrize("path", ["/v1/images/edits", "/v1/images/variations"])
@pytest.mark.parametrize("form", [{"prompt": "x", "image": "bytes"}, None])
async def test_a_picture_to_change_is_refused_in_words(client, engine, path, form):
    async with client.post(path, data=form) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "model")
    assert "draws from text alone" in error["message"]
    assert not engine.submitted


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ((), "https://a.example", None),
        (("https://a.example",), "https://a.example", "https://a.example"),
        (("https://a.example",), "https://b.example", None),
        (("*",), "https://b.example", "*"),
        (("https://a.example",), "null", None),
    ],
)
async def test_pages_of_listed_origins_alone_may_call(serving, origins, origin, allowed):
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    async with serving(settings=HttpSettings(origins=origins)) as client:
        async with client.options("/v1/images/generations", headers=asked) as response:
            assert response.status == (204 if allowed else 405)
            assert response.headers.get("Access-Control-Allow-Origin") == allowed
            assert ("Access-Control-Allow-Methods" in response.headers) == (allowed is not None)
        for path in ("/health", "/nowhere"):
            async with client.get(path, headers={"Origin": origin}) as response:
                assert response.headers.get("Access-Control-Allow-Origin") == allowed


async def test_no_answer_is_taken_for_another_type_than_it_has(client):
    for path in ("/livez", "/nowhere", "/openapi.json"):
        async with client.get(path) as response:
            assert response.headers["X-Content-Type-Options"] == "nosniff"
