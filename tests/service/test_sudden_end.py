"""The last of this folder: it ends the service that all others share."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.service.served import Served, Traces
from tests.service.test_launch import ENDLESS

pytestmark = pytest.mark.world


async def test_nothing_outlives_a_parent_that_is_killed(service: Served) -> None:
    await service.draw()
    traces = Traces(service)
    cut_off = asyncio.create_task(service.draw(**ENDLESS))
    await service.until_at_work()
    service.parents[0].kill()
    await asyncio.to_thread(traces.assert_gone, within_s=5)
    with pytest.raises(aiohttp.ClientError):
        await cut_off
