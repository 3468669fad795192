"""A picture as server-sent events."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from io import BytesIO

import pytest
from PIL import Image

from epe.errors import NonFinite, Refused
from epe.server import sse, streaming
from tests.server.stand_in import until
from tests.server.test_images import PATH, post


async def events_of(response) -> list[tuple[str, dict]]:
    """All events of a stream that ends."""
    assert (response.status, response.content_type) == (200, "text/event-stream")
    blocks = (await response.text()).split("\n\n")
    pairs = [block.split("\n") for block in blocks if block.startswith("event: ")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


async def stream(client, **body):
    async with client.post(PATH, json={"prompt": "x", "size": "64x64", "stream": True, **body}) as response:
        return await events_of(response)


async def test_a_stream_has_previews_and_then_the_picture(client, engine):
    events = await stream(client, partial_images=2, seed=9, quality="high", output_format="webp")
    names = [name for name, _ in events]
    assert names == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    assert [data["type"] for _, data in events] == names
    first, second, last = (data for _, data in events)
    assert (first["partial_image_index"], second["partial_image_index"]) == (0, 1)
    assert b64decode(second["b64_json"]) == b"preview 1"
    assert (first["size"], first["output_format"], first["background"]) == ("64x64", "webp", "opaque")
    picture = Image.open(BytesIO(b64decode(last["b64_json"])))
    assert (picture.format, picture.size) == ("WEBP", (64, 64))
    assert (last["seed"], last["epe"]["num_migrations"]) == (9, 1)
    assert last["warnings"] == ["quality has no effect here"]
    assert last["usage"]["input_tokens_details"] == {"image_tokens": 0, "text_tokens": 0}


@pytest.mark.parametrize("body", [{}, {"partial_images": 0}])
async def test_a_stream_without_previews_has_the_picture_alone(client, body):
    assert [name for name, _ in await stream(client, **body)] == ["image_generation.completed"]


async def test_a_large_picture_goes_out_in_pieces_that_make_one_event(client, engine):
    engine.noisy = True
    ((_, data),) = await stream(client, size="640x640")
    file = b64decode(data["b64_json"])
    assert len(file) > 3 * 2**18
    assert Image.open(BytesIO(file)).tobytes() == engine.paint(engine.submitted[0]).tobytes()


async def test_a_failure_after_the_stream_has_begun_is_an_event(client, engine):
    engine.failures[5] = NonFinite("NaN in the latents", stage="denoise", step=3)
    *_, (name, data) = await stream(client, seed=5, partial_images=1)
    assert name == "error"
    assert data["type"] == "error"
    assert (data["error"]["code"], data["error"]["stage"], data["error"]["step"]) == (
        "non_finite",
        "denoise",
        3,
    )


async def test_a_refusal_before_the_stream_has_begun_is_an_answer_as_ever(client, engine):
    engine.refusal = Refused("the queue is full", retry_after_s=2)
    status, reply = await post(client, prompt="x", stream=True)
    assert (status, reply["error"]["code"]) == (429, "overloaded")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream": True, "n": 2}, "n"),
        ({"stream": True, "response_format": "url"}, "response_format"),
        ({"partial_images": 1}, "partial_images"),
        ({"stream": False, "partial_images": 2}, "partial_images"),
        ({"stream": True, "partial_images": 4}, "partial_images"),
    ],
)
async def test_what_a_stream_cannot_have_is_named(client, engine, body, param):
    status, reply = await post(client, prompt="x", **body)
    assert (status, reply["error"]["param"]) == (400, param)
    assert not engine.submitted


async def test_a_stream_with_a_key_is_refused_since_it_is_not_kept(client, engine):
    headers = {"Idempotency-Key": "once"}
    async with client.post(PATH, json={"prompt": "x", "stream": True}, headers=headers) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "Idempotency-Key")
    assert not engine.submitted


async def test_a_reader_that_leaves_cancels_its_request(client, engine):
    engine.gate.clear()
    response = await client.post(PATH, json={"prompt": "x", "stream": True})
    await until(lambda: engine.num_running == 1)
    response.close()
    await until(lambda: bool(engine.cancelled))
    assert set(engine.cancelled) == {engine.submitted[0].id}


async def test_a_stream_says_that_it_lives_while_nothing_comes(client, engine, monkeypatch):
    monkeypatch.setattr(streaming, "KEEPALIVE_S", 0.01)
    engine.gate.clear()
    async with client.post(PATH, json={"prompt": "x", "size": "64x64", "stream": True}) as response:
        async with asyncio.timeout(10):
            assert await response.content.readline() == sse.KEEPALIVE.removesuffix(b"\n")
        engine.gate.set()
        assert b"image_generation.completed" in await response.content.read()
