"""Bodies that are no JSON object yet: none of their bytes is a defect of ours."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from aiohttp import ClientSession
from structlog.testing import capture_logs

from epe.server import body
from tests.server.test_images import PATH, post

HEAD = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()


async def send(client: ClientSession, data: bytes) -> tuple[int, bytes]:
    """The status and the body of the answer to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client._base_url.port)
    writer.write(data)
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = [line[15:] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        answer = await reader.readexactly(int(length))
    writer.close()
    return int(head.split()[1]), answer


async def test_an_empty_object_lacks_a_prompt(client):
    status, reply = await post(client)
    assert (status, reply["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("data", [b"no gzip", gzip.compress(b'{"prompt": "x"}')], ids=["broken", "good"])
async def test_a_compressed_body_is_refused_whatever_is_in_it(client, engine, data):
    with capture_logs() as lines:
        async with client.post(PATH, data=data, headers={"Content-Encoding": "gzip"}) as response:
            reply = await response.json()
    assert (response.status, reply["error"]["code"]) == (415, "unsupported_media_type")
    assert "gzip" in reply["error"]["message"]
    assert not engine.submitted
    assert {line["event"] for line in lines} == {"http.answered"}


async def test_a_body_in_broken_chunks_is_the_clients_fault(client, engine):
    with capture_logs() as lines:
        status, answer = await send(client, HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n")
    assert status == 400, answer
    assert not engine.submitted
    assert not [line for line in lines if line["log_level"] == "error"]


async def test_a_body_that_does_not_end_is_given_up(client, monkeypatch):
    monkeypatch.setattr(body, "BODY_WITHIN_S", 0.1)
    status, answer = await send(client, HEAD + b'Content-Length: 100\r\n\r\n{"prompt": ')
    assert (status, json.loads(answer)["error"]["code"]) == (408, "request_timeout")


@pytest.mark.parametrize(
    "data",
    [HEAD + b"Content-Length: -5\r\n\r\n", HEAD + b"X: " + b"a" * 10_000 + b"\r\n\r\n"],
    ids=["a length below 0", "a field that is too long"],
)
async def test_bytes_that_are_no_http_are_worth_one_line(client, data, capfd):
    with capture_logs() as lines:
        status, _ = await send(client, data)
    assert status == 400
    assert [line["log_level"] for line in lines if line["event"] == "http.was_malformed"] == ["info"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_a_body_of_another_type_is_refused_with_the_right_one(client, engine, content_type):
    headers = {"Content-Type": content_type}
    async with client.post(PATH, data=b'{"prompt": "x"}', headers=headers) as response:
        reply = await response.json()
    assert (response.status, reply["error"]["code"]) == (415, "unsupported_media_type")
    assert reply["error"]["message"] == f"content-type {content_type} is not read here; send application/json"
    assert not engine.submitted


async def test_a_body_without_a_type_is_read(client):
    body = b'{"prompt": "x", "size": "64x64"}'
    status, _ = await send(
        client, f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    assert status == 200


EXTRA = {"seed": 5, "deadline_ms": 90000, "priority": 2, "client_id": "a"}


@pytest.mark.parametrize(
    "extra", [{"extra_args": EXTRA}, {"extra_args": json.dumps(EXTRA)}, {"extra_body": EXTRA}]
)
async def test_extra_fields_count_as_if_they_stood_beside_the_others(client, engine, extra):
    status, _ = await post(client, prompt="x", size="64x64", **extra)
    assert status == 200
    (request,) = engine.submitted
    assert (request.seed, request.deadline_s, request.priority, request.client_id) == (5, 90.0, 2, "a")


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"extra_args": {"sede": 5}}, "sede"),
        ({"extra_args": {"seed": "5"}}, "seed"),
        ({"extra_args": {"prompt": "y"}}, "prompt"),
        ({"extra_args": {"seed": 5}, "extra_body": {"seed": 6}}, "seed"),
        ({"extra_args": 5}, "extra_args"),
        ({"extra_args": "seed=5"}, "extra_args"),
        ({"extra_body": [1]}, "extra_body"),
        ({"extra_args": {"extra_args": {}}}, "extra_args"),
    ],
)
async def test_a_wrong_extra_field_is_named(client, engine, extra, param):
    status, reply = await post(client, prompt="x", size="64x64", **extra)
    assert (status, reply["error"]["param"]) == (400, param), reply
    assert not engine.submitted


async def test_a_large_body_is_taken_apart_beside_the_loop(client):
    status, reply = await post(client, prompt="x" * 70_000)
    assert (status, reply["error"]["param"]) == (400, "prompt")
