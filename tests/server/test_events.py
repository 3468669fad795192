"""`/v1/events`: what readers hear, and that those who do not read cost nothing."""

from __future__ import annotations

import asyncio
import json
import socket

from aiohttp import ClientSession

from epe.config.request import resolve_request
from epe.families import family
from epe.messages import (
    Accepted,
    Admitted,
    Departed,
    Ended,
    Failure,
    FailureKind,
    LaneAtWork,
    LayoutChanged,
    Progress,
    Stage,
    Turned,
)
from epe.server import events
from epe.server.app import make_app, serve
from epe.server.events import MAX_CHUNKS, MAX_NEWS, Events
from tests.server.stand_in import account_of, until

REQUEST = resolve_request(family("zimage"), id="a", prompt="a secret", client_id="who")
ACCEPTED = Accepted(request_id="a", predicted_s=2.5)
ADMITTED = Admitted(request=REQUEST, accepted=ACCEPTED, arrived_at=100.0)


def progress(step: int, *, name: str = "a") -> Progress:
    return Progress(request_id=name, stage=Stage.DENOISE, step=step, num_steps=50, ranks=(0,))


def departed(failure: Failure | None = None) -> Departed:
    ended = Ended(request_id="a", account=account_of("a", order=1), failure=failure)
    return Departed(request=REQUEST, accepted=ACCEPTED, arrived_at=100.0, ended=ended)


def layout(*lanes: tuple[int, ...]) -> LayoutChanged:
    return LayoutChanged(
        lanes=tuple(LaneAtWork(ranks=each, request_id="a", stage=Stage.DENOISE) for each in lanes)
    )


async def next_event(stream) -> tuple[str, dict]:
    """The next event with data."""
    async with asyncio.timeout(10):
        name = ""
        while True:
            line = (await stream.content.readline()).decode().strip()
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))


async def test_a_reader_hears_how_things_are_and_then_what_happens(client, engine):
    engine.tell(layout((0, 1), (2,)))
    async with client.get("/v1/events") as stream:
        assert (stream.status, stream.content_type) == (200, "text/event-stream")
        name, data = await next_event(stream)
        assert (name, [lane["ranks"] for lane in data["lanes"]]) == ("layout.changed", [[0, 1], [2]])
        engine.tell(ADMITTED)
        name, data = await next_event(stream)
        assert (name, data["id"], data["status"], data["predicted_s"]) == (
            "request.admitted",
            "a",
            "queued",
            2.5,
        )
        assert "secret" not in str(data)
        assert "who" not in str(data)
        engine.tell(progress(3))
        name, data = await next_event(stream)
        assert (name, data["id"], data["step"]) == ("request.progressed", "a", 3)
        engine.tell(departed())
        name, data = await next_event(stream)
        assert (name, data["status"], data["account"]["num_migrations"]) == ("request.ended", "completed", 1)


async def test_a_reader_hears_of_refusals_and_failures_with_their_reasons(client, engine):
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="no memory")
    async with client.get("/v1/events") as stream:
        await next_event(stream)
        engine.tell(Turned(request=REQUEST, failure=failure))
        engine.tell(departed(failure))
        for expected in ("request.refused", "request.ended"):
            name, data = await next_event(stream)
            assert (name, data["kind"], data["reason"]) == (expected, "out_of_memory", "no memory")


async def test_of_the_progress_within_a_tick_the_last_counts(client, engine):
    async with client.get("/v1/events") as stream:
        await next_event(stream)
        for step in range(1, 30):
            engine.tell(progress(step))
            engine.tell(layout((step % 4,)))
        assert (await next_event(stream))[1]["step"] == 29
        name, data = await next_event(stream)
        assert (name, data["lanes"][0]["ranks"]) == ("layout.changed", [1])
        engine.tell(progress(30))
        assert (await next_event(stream))[1]["step"] == 30


async def test_a_stalled_reader_has_bounded_chunks_and_is_told_what_it_lost():
    hub = Events()
    fast, stalled = hub.begin(), hub.begin()
    for step in range(3 * MAX_CHUNKS):
        hub.hear(progress(step))
        hub._flush()
        await fast.next()
    assert len(stalled.chunks) == MAX_CHUNKS
    assert b"events.lost" in await stalled.next()
    assert f'"step":{2 * MAX_CHUNKS}'.encode() in await stalled.next()
    assert fast.num_lost == 0


async def test_readers_share_the_bytes_of_a_chunk():
    hub = Events()
    readers = [hub.begin() for _ in range(1000)]
    hub.hear(progress(1))
    hub._flush()
    await until(lambda: all(len(reader.chunks) == 2 for reader in readers))
    assert len({id(reader.chunks[-1]) for reader in readers}) == 1


async def test_others_have_the_loop_while_a_thousand_readers_are_handed_a_chunk():
    hub = Events()
    readers = [hub.begin() for _ in range(1000)]
    hub.hear(progress(1))
    hub._flush()
    num_turns = 0
    while len(readers[-1].chunks) < 2:
        await asyncio.sleep(0)
        num_turns += 1
    assert num_turns > 20


async def test_what_happens_while_a_chunk_is_handed_out_is_in_the_next_one():
    hub = Events()
    readers = [hub.begin() for _ in range(1000)]
    hub.hear(progress(1))
    hub._flush()
    hub.hear(progress(2))
    await until(lambda: len(readers[-1].chunks) == 3)
    assert [b'"step":2' in chunk for chunk in readers[-1].chunks] == [False, False, True]


async def test_a_flood_within_a_tick_is_bounded_and_counted():
    hub = Events()
    reader = hub.begin()
    await reader.next()
    for _ in range(MAX_NEWS + 5):
        hub.hear(ADMITTED)
    hub._flush()
    chunk = await reader.next()
    assert b'events.left_out\ndata: {"events":5}' in chunk
    assert chunk.count(b"request.admitted") == MAX_NEWS


def test_nothing_is_kept_where_nobody_watches():
    hub = Events()
    for step in range(100):
        hub.hear(ADMITTED)
        hub.hear(progress(step))
    assert (len(hub._news), len(hub._progress), hub._tick) == (0, 0, None)


async def test_a_reader_that_leaves_is_forgotten(client, engine):
    hub = engine.listeners[0].__self__
    for _ in range(3):
        async with client.get("/v1/events") as stream:
            await next_event(stream)
            assert len(hub.readers) == 1
        engine.tell(progress(1))
        await until(lambda: not hub.readers)


async def test_a_reader_that_leaves_before_the_answer_begins_is_no_reader(engine, monkeypatch):
    async def has_left(http):
        raise ConnectionResetError("the client has left")

    monkeypatch.setattr(events, "open_stream", has_left)
    sock = socket.create_server(("127.0.0.1", 0))
    app = make_app(engine, family=family("zimage"), name="image")
    runner = await serve(app, sock)
    try:
        async with ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}") as session:
            await session.get("/v1/events")
    finally:
        await runner.cleanup()
    assert not app[events.EVENTS].readers


async def test_a_quiet_stream_says_that_it_lives(client, monkeypatch):
    monkeypatch.setattr(events, "KEEPALIVE_S", 0.01)
    async with client.get("/v1/events") as stream:
        await next_event(stream)
        async with asyncio.timeout(10):
            while (await stream.content.readline()) != b": keepalive\n":
                pass


async def test_the_end_of_the_service_does_not_wait_for_readers(engine):
    sock = socket.create_server(("127.0.0.1", 0))
    runner = await serve(make_app(engine, family=family("zimage"), name="image"), sock, end_within_s=600)
    async with ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}") as client:
        streams = [await client.get("/v1/events") for _ in range(3)]
        for stream in streams:
            await next_event(stream)
        async with asyncio.timeout(60):
            await runner.cleanup()
            assert [await stream.content.read() for stream in streams] == [b"\n", b"\n", b"\n"]
