"""What users of other servers complain about, and that HTTP alone can get wrong; each is named after the symptom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, ClientTimeout, FormData, web

from tests.server.conftest import Serving
from tests.server.stand_in import StandIn, until
from tests.server.test_images import PATH, post


async def test_a_client_that_times_out_and_tries_again_never_has_two_copies_at_work(
    client: ClientSession, engine: StandIn
) -> None:
    engine.gate.clear()
    for attempt in range(1, 4):
        drawing = asyncio.ensure_future(client.post(PATH, json={"prompt": "x", "size": "64x64"}))
        await until(lambda expected=attempt: len(engine.submitted) == expected and engine.num_running == 1)
        drawing.cancel()
        await until(lambda expected=attempt: len(engine.cancelled) == expected and engine.num_running == 0)
    assert engine.most_running == 1


@pytest.fixture
async def inside(unused_tcp_port: int) -> AsyncIterator[tuple[str, list[str]]]:
    """A service that only this machine can reach, as of a cloud's metadata, and what was asked of it."""
    asked: list[str] = []

    async def handle(http: web.Request) -> web.Response:
        asked.append(http.path)
        return web.Response(text="secret")

    app = web.Application()
    app.router.add_get("/{tail:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    yield f"http://127.0.0.1:{unused_tcp_port}/latest/meta-data", asked
    await runner.cleanup()


@pytest.mark.parametrize("field", ["image", "image_url", "url", "mask", "input_reference", "reference_url"])
async def test_no_url_that_a_client_sends_is_fetched(
    client: ClientSession, engine: StandIn, inside: tuple[str, list[str]], field: str
) -> None:
    url, asked = inside
    status, reply = await post(client, prompt="x", **{field: url})
    assert (status, reply["error"]["param"]) == (400, field)
    for path in ("/v1/images/edits", "/v1/images/variations"):
        async with client.post(path, json={"prompt": "x", field: url}) as response:
            assert response.status == 400
    assert (asked, engine.submitted) == ([], [])


async def test_the_name_of_a_file_that_a_client_sends_reaches_no_disk(
    client: ClientSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = tmp_path_factory.mktemp("outside") / "written.png"
    form = FormData()
    form.add_field("image", b"\x89PNG", filename=f"../../../../../..{target}", content_type="image/png")
    async with client.post("/v1/images/edits", data=form) as response:
        assert response.status == 400
    assert not target.exists()


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "%2e%2e", "a%00b.png", "x" * 4000])
async def test_an_odd_name_of_a_result_is_not_found(client: ClientSession, name: str) -> None:
    async with client.get(f"/v1/results/{name}") as response:
        assert response.status in (400, 404)
        assert "error" in await response.json()


async def test_a_client_that_hard_codes_the_name_of_a_model_is_served_where_that_is_asked_for(
    client: ClientSession, serving: Serving
) -> None:
    body = {"prompt": "x", "size": "64x64", "model": "gpt-image-1"}
    assert (await post(client, **body))[0] == 200
    async with serving() as other:
        status, reply = await post(other, **body)
    assert (status, reply["error"]["code"]) == (404, "model_not_found")


async def test_a_client_that_sends_its_body_slowly_holds_up_nobody(
    client: ClientSession, engine: StandIn
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", client._base_url.port)
    writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n".encode() + b'{"prompt')
    assert (await post(client, prompt="x", size="64x64"))[0] == 200
    async with client.get("/livez", timeout=ClientTimeout(total=10)) as response:
        assert response.status == 200
    writer.close()
    assert len(engine.submitted) == 1
