"""Clients that come all at once, while the loop is busy with something else."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from aiohttp import ClientSession

NUM_CLIENTS = 500


@pytest.mark.skipif(
    int(Path("/proc/sys/net/core/somaxconn").read_text()) < NUM_CLIENTS, reason="the kernel lets fewer wait"
)
async def test_a_burst_of_connections_is_held_until_the_loop_takes_them(client: ClientSession) -> None:
    """aiohttp has 128 wait, whatever the socket had before: all others were reset, or waited for seconds."""
    port = client._base_url.port
    # The loop does not turn meanwhile: the kernel alone holds them.
    waiting = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(NUM_CLIENTS)]
    async with client.get("/livez") as response:
        assert response.status == 200
    for each in waiting:
        each.close()
