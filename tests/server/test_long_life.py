"""What a server keeps of clients of every kind when they have gone: nothing more after many than after a few."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

from aiohttp import ClientSession

from tests.server.stand_in import StandIn, until
from tests.server.test_leaving import leave_while_drawing

PATH = "/v1/images/generations"
BODY = {"prompt": "x", "size": "64x64", "num_inference_steps": 4}
NUM_OF_EACH = 10
# asyncio keeps timers that were cancelled for a while, and yarl the last addresses.
KEPT_BY_OTHERS = ("TimerHandle", "Context", "URL")


async def come_and_go(client: ClientSession, engine: StandIn, number: int) -> None:
    """One client of each kind."""
    for body, status in (
        (BODY, 200),
        ({**BODY, "n": 2, "output_format": "webp"}, 200),
        ({**BODY, "size": "65x64"}, 400),
        ({**BODY, "cache": {"strategy": "nothing"}}, 400),
    ):
        async with client.post(PATH, json=body, headers={"x-request-id": f"given-{number}"}) as answer:
            assert answer.status == status, await answer.text()
    for path, status in (("/metrics", 200), ("/health", 200), ("/v1/requests", 200), (f"/no/{number}", 404)):
        async with client.get(path) as answer:
            assert answer.status == status
    async with client.get("/v1/events") as stream:  # who reads the first words, and leaves
        await stream.content.readline()
    async with client.post(PATH, json={**BODY, "stream": True, "partial_images": 1}) as stream:
        await stream.content.read()
    await keep_and_forget(client)
    engine.gate.clear()
    await leave_while_drawing(client, engine)
    await until(lambda: bool(engine.cancelled))
    engine.gate.set()


async def keep_and_forget(client: ClientSession) -> None:
    """A job, from its acceptance until nothing is known of it."""
    async with client.post("/v1/requests", json=BODY) as answer:
        place = f"/v1/requests/{(await answer.json())['id']}"
    while True:
        async with client.get(place) as answer:
            if (await answer.json())["ended_at"] is not None:
                break
        await asyncio.sleep(0.01)
    async with client.delete(place) as answer:
        assert answer.status == 200
    async with client.get(place) as answer:
        assert answer.status == 404


async def left_after(client: ClientSession, engine: StandIn) -> Counter[str]:
    """The objects that are left, by type."""
    for number in range(NUM_OF_EACH):
        await come_and_go(client, engine, number)
    # What the stand-in notes down is not the server's.
    for noted in (engine.submitted, engine.cancelled, engine.live, engine.watchers):
        noted.clear()
    await until(lambda: engine.num_running == 0)
    await asyncio.sleep(0.1)
    gc.collect()
    kinds = (type(each).__qualname__ for each in gc.get_objects())
    return Counter(kind for kind in kinds if kind not in KEPT_BY_OTHERS)


async def test_a_server_keeps_nothing_of_clients_that_have_gone(
    client: ClientSession, engine: StandIn
) -> None:
    await left_after(client, engine)
    before = await left_after(client, engine)
    for _ in range(2):
        after = await left_after(client, engine)
    more = after - before
    assert more.total() < NUM_OF_EACH, f"after {2 * NUM_OF_EACH} of each kind: {more.most_common(8)}"
