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

HEAD = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n".encode()


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
