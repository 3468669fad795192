from __future__ import annotations

import asyncio
import json

from aiohttp import ClientSession
from structlog.testing import capture_logs

from epe.server import sse
from tests.server.stand_in import StandIn, until

PATH = "/v1/images/generations"


async def leave_while_drawing(client: ClientSession, engine: StandIn, *, num_pictures: int = 1) -> None:
    body = {"prompt": "x", "size": "64x64", "n": num_pictures}
    drawing = asyncio.ensure_future(client.post(PATH, json=body))
    before = len(engine.submitted)
    await until(lambda: len(engine.submitted) == before + num_pictures and engine.num_running > 0)
    drawing.cancel()
    await asyncio.gather(drawing, return_exceptions=True)


async def test_a_client_that_leaves_cancels_its_request(client, engine):
    engine.gate.clear()
    await leave_while_drawing(client, engine)
    await until(lambda: bool(engine.cancelled))
    assert engine.cancelled == [engine.submitted[0].id]


async def test_a_client_that_leaves_cancels_all_of_its_pictures(client, engine):
    engine.gate.clear()
    await leave_while_drawing(client, engine, num_pictures=3)
    await until(lambda: len(engine.cancelled) == 3)
    assert set(engine.cancelled) == {request.id for request in engine.submitted}


async def test_a_client_that_leaves_touches_nobody_else(client, engine):
    engine.gate.clear()
    stays = asyncio.ensure_future(client.post(PATH, json={"prompt": "x", "size": "64x64", "seed": 99}))
    await until(lambda: engine.num_running == 1)
    await leave_while_drawing(client, engine)
    await until(lambda: len(engine.cancelled) == 1)
    engine.gate.set()
    async with await stays as response:
        assert response.status == 200
        assert (await response.json())["data"][0]["seed"] == 99
    assert len(engine.cancelled) == 1


async def test_a_finished_request_is_not_cancelled(client, engine):
    async with client.post(PATH, json={"prompt": "x", "size": "64x64"}) as response:
        assert response.status == 200
        await response.read()
    assert engine.cancelled == []


async def test_a_client_that_stops_reading_is_let_go(client, engine, monkeypatch):
    monkeypatch.setattr(sse, "STALLED_S", 0.2)
    engine.noisy = True
    reader, writer = await asyncio.open_connection("127.0.0.1", client._base_url.port, limit=2**10)
    body = json.dumps({"prompt": "x", "size": "2048x2048", "n": 2}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    with capture_logs() as lines:
        await until(lambda: any(line["event"] == "client.stalled" for line in lines))
    # Only now is anything read: what stood in the buffers, and no more.
    num_bytes = 0
    try:
        while piece := await reader.read(2**20):
            num_bytes += len(piece)
    except ConnectionResetError:
        pass
    writer.close()
    assert num_bytes < 2 * 2048 * 2048 * 3
