from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession

from epe.families import family
from epe.server.app import make_app, serve
from tests.server.stand_in import StandIn


@pytest.fixture
async def engine() -> StandIn:
    """An engine whose results come at once, unless a test closes the gate."""
    engine = StandIn()
    engine.gate.set()
    return engine


@pytest.fixture
async def client(engine: StandIn) -> AsyncIterator[ClientSession]:
    """A client of the real application on a real socket."""
    sock = socket.create_server(("127.0.0.1", 0))
    app = make_app(engine, family=family("zimage"), name="image", aliases=("gpt-image-1",))
    runner = await serve(app, sock, end_within_s=0.1)
    async with ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}") as session:
        yield session
    await runner.cleanup()
