from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession

from epe.families import family
from epe.server.app import make_app, serve
from epe.server.settings import HttpSettings
from tests.browser import Browser, Tab, open_tab
from tests.server.scenes import address_of
from tests.server.stand_in import StandIn

Serving = Callable[..., AbstractAsyncContextManager[ClientSession]]


@pytest.fixture
async def engine() -> StandIn:
    """An engine whose results come at once, unless a test closes the gate."""
    engine = StandIn()
    engine.gate.set()
    return engine


@pytest.fixture
def serving(engine: StandIn) -> Serving:
    """The real application on a real socket, with what a test says: a client of it."""

    @asynccontextmanager
    async def served(**given: Any) -> AsyncIterator[ClientSession]:
        sock = socket.create_server(("127.0.0.1", 0))
        stage = {"family": family("zimage"), "name": "image", **given}
        runner = await serve(make_app(engine, **stage), sock, end_within_s=0.1)
        try:
            async with ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}") as session:
                yield session
        finally:
            await runner.cleanup()

    return served


@pytest.fixture
async def client(serving: Serving) -> AsyncIterator[ClientSession]:
    """A client of an application with the settings of a stage file that says nothing of HTTP."""
    async with serving(settings=HttpSettings(aliases=("gpt-image-1",))) as session:
        yield session


@pytest.fixture
async def tab(browser: Browser, client: ClientSession) -> AsyncIterator[Tab]:
    """The page of a service that has just come up, in touch with it."""
    async with open_tab(browser, address_of(client)) as tab:
        await tab.reads("#connection", "Live")
        yield tab
