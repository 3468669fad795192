"""Listening sockets, opened before anything slow begins so that a port in use is told at once."""

from __future__ import annotations

import errno
import os
import resource
import socket

from epe.errors import BadSetting

BACKLOG = 1024
# Enough for any number of readers that one process can serve.
MOST_DESCRIPTORS = 65536


def listen_for_http(host: str, port: int) -> socket.socket:
    """A listening socket for the service; raises BadSetting with one sentence where that cannot be."""
    return _listen(
        host, port, path="service", remedy="choose another with --host, --port or in the stage file"
    )


def listen_for_store(host: str, port: int = 0) -> socket.socket:
    """A listening socket for the store of the membership, on `host` alone."""
    return _listen(host, port, path="MASTER_PORT", remedy="choose another MASTER_ADDR or MASTER_PORT")


def allow_many_connections() -> None:
    """Let this process have as many descriptors as the system allows. Of the 1024 that shells give each connection has
    one, also an idle one, and who comes after them is cut off."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _listen(host: str, port: int, *, path: str, remedy: str) -> socket.socket:
    if not 0 <= port <= 65535:
        raise BadSetting(f"port {port} is not between 0 and 65535; {remedy}", path=path)
    try:
        family, address = _resolve(host, port)
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)  # only a listening socket keeps the port from others
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise BadSetting(f"cannot listen on {host}:{port}: {_reason(error)}; {remedy}", path=path) from error
    return listener


def _resolve(
    host: str, port: int
) -> tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]:
    """The address to bind; the IPv4 one where a name has both, as clients of `localhost` expect."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address  # type: ignore[return-value]  # bytes only on builds without IPv6


def _reason(error: OSError) -> str:
    match error:
        case socket.gaierror():
            return "this name has no address"
        case OSError(errno=errno.EADDRINUSE):
            return "the port is in use"
        case OSError(errno=errno.EADDRNOTAVAIL):
            return "this is not an address of this machine"
        case OSError(errno=errno.EACCES):
            return "ports below 1024 need privileges"
        case _:
            return os.strerror(error.errno) if error.errno else str(error)
