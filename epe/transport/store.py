"""The store through which the processes of a world find each other: on loopback unless the user names a host.

It carries rendezvous alone, never tensors or messages. It lives in the leader, or in torchrun's agent, so it
outlives any rank.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore

from epe.errors import StartFailed

# For so long ranks that have nothing to do before they meet wait for each other.
MEET_WITHIN_S = 180.0
_POLL_S = 0.01


def host_store(listen: socket.socket | None = None, *, host: str = "127.0.0.1", port: int = 0) -> TCPStore:
    """Serve a store from this process, on `listen` if given, else on `host:port` (port 0: any free one).

    The socket is always bound here: left to itself the store listens on every interface of the machine.
    """
    bound = listen if listen is not None else _bind(host, port)
    address, bound_port = bound.getsockname()[:2]
    return TCPStore(
        address, bound_port, is_master=True, wait_for_workers=False, master_listen_fd=bound.detach()
    )


def join_store(host: str, port: int, *, timeout_s: float) -> TCPStore:
    """A client of the store at `host:port`; raises `StartFailed` when none answers in time."""
    limit = timedelta(seconds=timeout_s)
    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
    except RuntimeError as error:
        raise StartFailed(
            f"no store answers at {host}:{port} within {timeout_s:g} s; "
            "is the leader (or torchrun) running there?"
        ) from error


def split_store(store: Store, epoch: int, *, attempt: int = 0) -> PrefixStore:
    """The part of the store that belongs to one epoch.

    `attempt` counts the restarts of a launcher that keeps the store through them: the dead attempt's
    addresses still stand there.
    """
    return PrefixStore(f"epe/attempt{attempt}/epoch{epoch}", store)


def told_by_all(
    store: Store, name: str, mine: str, *, rank: int, world_size: int, timeout_s: float
) -> list[str]:
    """What each rank of a world has to say about `name`, the same list on all of them: this tells the others what is
    `mine`, and waits until all have told theirs. The first word of a rank counts, also in its later lives. Raises
    `StartFailed` for ranks that say nothing in time, and where the store ends meanwhile."""
    try:
        return _told(store, name, mine, rank=rank, world_size=world_size, timeout_s=timeout_s)
    except RuntimeError as error:
        raise StartFailed(
            f"rank {rank} could not tell the others its {name}: the store does not answer any more; the process that "
            "serves it, rank 0 or torchrun, says why"
        ) from error


def _told(store: Store, name: str, mine: str, *, rank: int, world_size: int, timeout_s: float) -> list[str]:
    # A client of its own: others do not wait for it.
    told = PrefixStore(name, store.clone())
    told.compare_set(str(rank), "", mine)
    keys = [str(other) for other in range(world_size)]
    end_s = time.monotonic() + timeout_s
    # In short looks: a wait in the store could not name who is missing.
    while not told.check(keys):
        if time.monotonic() > end_s:
            missing = ", ".join(key for key in keys if not told.check([key]))
            raise StartFailed(f"rank {missing} told nobody its {name} within {timeout_s:g} s")
        time.sleep(_POLL_S)
    return [told.get(key).decode() for key in keys]


def interface_of(store: Store) -> str | None:
    """The network interface that the world may keep to: loopback if the store is there, else None (any)."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore) or not is_loopback(store.host):
        return None
    return loopback_interface()


def is_loopback(host: str) -> bool:
    """Whether every address of `host` is this machine's loopback."""
    addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)


def loopback_interface() -> str:
    """The name of the loopback interface: `lo` on Linux, `lo0` elsewhere."""
    return next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise StartFailed(
            f"the store cannot listen on {host}:{port} ({error.strerror or error}); "
            "choose another port or host"
        ) from error
