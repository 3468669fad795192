from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from epe.errors import BadSetting
from epe.launch.sockets import listen_for_http, listen_for_store


def test_port_0_takes_a_free_port_of_that_address_alone() -> None:
    with listen_for_store("127.0.0.1") as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with socket.create_connection((host, port)):
            pass


def test_localhost_is_the_ipv4_loopback() -> None:
    with listen_for_http("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("127.0.0.1", 70000, "port 70000 is not between 0 and 65535"),
        ("127.0.0.1", -1, "port -1 is not between 0 and 65535"),
        ("203.0.113.7", 0, "cannot listen on 203.0.113.7:0: this is not an address of this machine"),
        ("no-such-host.invalid", 0, "cannot listen on no-such-host.invalid:0: this name has no address"),
    ],
)
def test_an_address_that_cannot_be_bound_says_why_and_what_to_do(host: str, port: int, reason: str) -> None:
    with pytest.raises(BadSetting) as caught:
        listen_for_http(host, port)
    remedy = "choose another with --host, --port or in the stage file"
    assert str(caught.value) == f"service: {reason}; {remedy}"


def test_a_port_in_use_is_taken_from_nobody() -> None:
    with listen_for_http("127.0.0.1", 0) as first, pytest.raises(BadSetting, match="the port is in use"):
        listen_for_http("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize(("soft", "hard", "allowed"), [(256, 400, 400), (400, 400, 400)])
def test_a_leader_may_have_as_many_connections_as_the_system_allows(
    soft: int, hard: int, allowed: int
) -> None:
    program = f"""
import resource
from epe.launch.sockets import allow_many_connections
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
allow_many_connections()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert said.stdout == f"({allowed}, {hard})\n"
