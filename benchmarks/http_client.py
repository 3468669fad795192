"""Clients of HTTP that cost next to nothing, so that a load on a service measures the service: requests are bytes made
beforehand, and of an answer only the head is looked at."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import multiprocessing.connection
import socket
import time
from collections import deque
from multiprocessing.synchronize import Event
from typing import NamedTuple, cast

# The sides of the pictures that are asked for.
SMALL, LARGE = 64, 4096
# Connections that are being opened at once: the service takes them from a queue of a thousand.
MAX_OPENING = 256


class Answer(NamedTuple):
    """The status, 0 where the connection broke, and the seconds from sending the request to the last byte."""

    status: int
    seconds: float


def request_bytes(method: str, path: str, *, body: object = None) -> bytes:
    """A request on a connection that stays open."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
    if content:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"\r\n" + content


class Connection(asyncio.Protocol):
    """One request after the other on one connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[Answer] | None = None
        self._head = b""
        self._missing: int | None = None
        self._begin_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request; the answer comes later."""
        assert self._transport is not None, "it is open"
        self._head, self._missing, self._begin_s = b"", None, time.monotonic()
        answered = self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return answered

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._missing is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            self._missing = _content_length(self._head[:end]) - (len(self._head) - end - 4)
        else:
            self._missing -= len(data)
        if self._missing <= 0:
            self._ended(int(self._head[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        self._ended(0)

    def _ended(self, status: int) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(Answer(status, time.monotonic() - self._begin_s))


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line[:15].lower() == b"content-length:":
            return int(line[15:])
    raise ValueError(f"an answer without a length: {head[:200]!r}")


class Client:
    """As many connections as there are requests at once."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: deque[Connection] = deque()
        self._all: list[Connection] = []
        self._opening = asyncio.Semaphore(MAX_OPENING)

    async def ask(self, request: bytes) -> Answer:
        """Send on a connection of one's own, and wait for the answer."""
        connection = await self._connection()
        answer = await connection.send(request)
        if connection.is_open:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Leave, whatever is still waited for."""
        for connection in self._all:
            connection.close()

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.popleft()
            if connection.is_open:
                return connection
        loop = asyncio.get_running_loop()
        async with self._opening:
            _, connection = await loop.create_connection(Connection, "127.0.0.1", self.port)
        self._all.append(connection)
        return connection


class Reader(asyncio.Protocol):
    """One who reads `/v1/events`, or who `stalls`: asks for them and never reads."""

    REQUEST = request_bytes("GET", "/v1/events")

    def __init__(self, *, stalls: bool) -> None:
        self.num_bytes = 0
        self.is_open = False
        self._stalls = stalls

    async def begin(self, port: int) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        if self._stalls:  # as little as the system allows is taken for it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.create_connection(lambda: self, sock=sock)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        self.is_open = True
        if self._stalls:
            stream.pause_reading()
        stream.write(self.REQUEST)

    def data_received(self, data: bytes) -> None:
        self.num_bytes += len(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False


class Probe:
    """Asks `/livez` from a process of its own, so that nothing but the service and the machine delays the answer."""

    EVERY_S = 0.02

    def __init__(self, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._over = context.Event()
        self._process = context.Process(target=_probe, args=(port, self._over, theirs), daemon=True)
        self._process.start()
        self._ours.recv()

    def end(self) -> list[float]:
        """The seconds of each answer since the start."""
        self._over.set()
        seconds: list[float] = self._ours.recv()
        self._process.join()
        return seconds


def _probe(port: int, over: Event, told: multiprocessing.connection.Connection) -> None:
    request, seconds = request_bytes("GET", "/livez"), []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        told.send("ready")
        while not over.wait(Probe.EVERY_S):
            begin_s = time.monotonic()
            sock.sendall(request)
            answer = sock.recv(65536)
            seconds.append(time.monotonic() - begin_s)
            assert answer.startswith(b"HTTP/1.1 200"), answer
    told.send(seconds)
